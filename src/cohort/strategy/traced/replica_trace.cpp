// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/traced/replica_trace.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"

namespace cohort::internal {
namespace {

thread_local ReplicaTrace* current_trace = nullptr;

std::vector<at::Tensor> nothing() { return {}; }

// The part of a call for one replica alone; none if the replicas make it together.
std::optional<std::size_t> own_value(const MirroredHome::Reach& reach) {
  COHORT_ASSERT(reach.kind != MirroredHome::Reach::Kind::all);  // a trace is in a replica
  if (reach.kind == MirroredHome::Reach::Kind::merged) return std::nullopt;
  return reach.value;
}

// The tensor that this replica's program has for the variable.
at::Tensor own_tensor(const Variable& variable) {
  const MirroredTarget target = target_of(variable);
  const auto home = std::static_pointer_cast<MirroredHome>(variable.impl()->home());
  const std::size_t here = home->component_here();
  COHORT_CHECK(!target.component || *target.component == here, ErrorCode::unimplemented,
               "[strategy.function] expected a replica to write its own component, got '",
               variable.name(), "' in replica ", here,
               "; call run() instead, or write each component outside of the step");
  return target.variable.component(here);
}

}  // namespace

ReplicaTrace::ReplicaTrace(MirroredHome* home, std::size_t replicas,
                           std::vector<GatherSizes> gathers)
    : outer_(std::exchange(current_trace, this)),
      home_(home),
      replicas_(replicas),
      gathers_(std::move(gathers)) {}

ReplicaTrace::~ReplicaTrace() { current_trace = outer_; }

ReplicaTrace* ReplicaTrace::current() { return current_trace; }

void ReplicaTrace::begin_pass(const std::vector<at::Tensor>& inputs) {
  inputs_.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    inputs_.emplace(inputs[i].unsafeGetTensorImpl(), i);
  calls_.clear();
  collectives_ = 0;
  gathered_.clear();
  assumed_.clear();
}

TensorIdentity ReplicaTrace::identity_of(const at::Tensor& tensor) const {
  const auto found = inputs_.find(tensor.unsafeGetTensorImpl());
  if (found == inputs_.end()) return {tensor, std::nullopt};
  return {tensor, found->second};
}

std::vector<at::Tensor> ReplicaTrace::record(
    std::shared_ptr<const StepCall> call, const std::vector<at::Tensor>& values,
    const std::vector<at::Tensor>& updated,
    const std::function<std::vector<at::Tensor>()>& example) {
  function::Trace* const trace = function::Trace::current();
  COHORT_ASSERT(trace != nullptr);
  const auto number = static_cast<std::int64_t>(calls_.size());
  std::vector<at::Tensor> results =
      trace->call_host(call->text(), number, values, updated, example);
  calls_.push_back(std::move(call));
  return results;
}

GatherSizes ReplicaTrace::next_gather(std::int64_t own_size) {
  const std::size_t number = gathered_.size();
  gathered_.push_back(own_size);
  assumed_.push_back(number < gathers_.size() ? gathers_[number]
                                              : GatherSizes(replicas_, own_size));
  return assumed_.back();
}

void ReplicaTrace::assign(std::span<const Assignment> assignments) {
  for (const Assignment& each : assignments) {
    const auto reach = own_value(home_->reach_here(each.variable, "variable.assign"));
    record(assign_call(each, identity_of(each.value), reach), {each.value},
           {own_tensor(each.variable)}, nothing);
  }
}

void ReplicaTrace::scatter(std::span<const RowUpdate> updates) {
  for (const RowUpdate& each : updates) {
    const MirroredTarget target = target_of(each.variable);
    if (!target.component) target.variable.check_scatter(each.kind);
    const auto reach = own_value(home_->reach_here(each.variable, variable::call_name(each.kind)));
    record(scatter_call(each, identity_of(each.indices), identity_of(each.rows), reach),
           {each.indices, each.rows}, {own_tensor(each.variable)}, nothing);
  }
}

void ReplicaTrace::apply(const SlotKey& key, std::span<const Update> updates,
                         std::span<const at::Tensor> hyper) {
  std::vector<at::Tensor> gradients, updated;
  for (const Update& update : updates) {
    COHORT_CHECK(!target_of(update.variable).component, ErrorCode::unimplemented,
                 "[optimizer.apply_gradients] expected whole variables in a replica context, got "
                 "the component '",
                 update.variable.name(), "'; update it in StrategyExtended::update()");
    updated.push_back(own_tensor(update.variable));
    if (update.gradient.defined()) gradients.push_back(update.gradient);
  }
  record(apply_call(key, updates, hyper), gradients, updated, nothing);
}

UpdateRecorder* MirroredHome::recorder() {
  ReplicaTrace* const trace = ReplicaTrace::current();
  return trace != nullptr && trace->home() == this ? trace : nullptr;
}

}  // namespace cohort::internal
