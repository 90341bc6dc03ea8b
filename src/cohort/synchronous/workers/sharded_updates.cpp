// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/workers/sharded_updates.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/workers/shares.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// A whole update of a value that each replica has for itself.
struct OwnUpdate {
  MirroredVariable& variable;
  std::size_t value;
  std::span<const double> hyper;
  VariableState::Reserve reserve;
};

}  // namespace

// The work of this worker for one variable.
struct ShardedUpdates::Part {
  MirroredVariable& variable;
  ElementRange range;
  at::Tensor gradient;  // of these elements, where the value is
  std::span<const double> hyper;
  VariableState::Fresh fresh;
};

// The parts of one dtype.
struct ShardedUpdates::Pack {
  std::vector<Part*> parts;
  SharesToGather shares;

  void update(const SlotKey& key) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      Part& part = *parts[i];
      at::Tensor out = shares.own(i);
      const bool is_direct = part.gradient.is_cpu();
      at::Tensor fresh = is_direct ? out : at::empty_like(part.gradient);
      part.variable.state_of_shares().apply_part(key, std::move(part.fresh), fresh, part.gradient,
                                                 part.hyper, part.range);
      if (!is_direct) out.copy_(fresh);
    }
  }
  void write() const {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      MirroredVariable& variable = parts[i]->variable;
      for (std::size_t value = 0; value < variable.size(); ++value)
        shares.write(i, variable.state(value).value());
      variable.note_new_values();
    }
  }
};

ShardedUpdates::ShardedUpdates(std::shared_ptr<StrategyWorkers> workers, WorkerGradients& gradients)
    : workers_(std::move(workers)), gradients_(gradients) {}

// A step that can fail on one worker alone must fail before another one has updated its slots.
void ShardedUpdates::check(const SlotKey& key, const std::vector<Variable>& variables) const {
  COHORT_CHECK(!holder_.is_torn, ErrorCode::failed_precondition, "[", kApplyCall,
               "] expected slots that fit the values of variables, got some of a step that has "
               "failed after a part of the workers had updated theirs; call rebuild(), or restore "
               "saved values in a new strategy");
  std::set<const MirroredVariable*> seen;
  for (const Variable& handle : variables) {
    const MirroredVariable& variable = target_of(handle).variable;
    COHORT_CHECK(seen.insert(&variable).second, ErrorCode::unimplemented, "[", kApplyCall,
                 "] expected each variable once (shard_optimizer_state), got '", variable.name(),
                 "' twice; add its gradients first, or call apply_gradients() for each");
    variable.state(0).check_rule(key, variable.name());
    COHORT_CHECK(variable.is_on_read() || !variable.may_differ(), ErrorCode::unimplemented, "[",
                 kApplyCall, "] expected equal values of variable '", variable.name(),
                 "' in all replicas, since each worker updates a share of them "
                 "(shard_optimizer_state), got one of which a replica's component was written "
                 "alone; assign the whole variable only, make it synchronized on read, or train "
                 "without shard_optimizer_state");
  }
}

void ShardedUpdates::note_holder() {
  if (!holder_.names.empty() && group_number_ == workers_->group_number()) return;
  group_number_ = workers_->group_number();
  holder_ = {.own = workers_->own()};
  for (int worker = 0; worker < workers_->count(); ++worker)
    holder_.names.push_back(workers_->name_of(worker));
}

std::vector<ShardedUpdates::Part> ShardedUpdates::parts_of(
    const SlotKey& key, const std::vector<Variable>& variables,
    const std::vector<Reduction::Parts>& sums, std::span<const double> all) const {
  std::vector<Part> parts;
  parts.reserve(variables.size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    MirroredVariable& variable = target_of(variables[i]).variable;
    if (!sums[i].value.defined() || variable.is_on_read()) continue;
    const std::span<const double> hyper = key.hyper_of(variables[i].impl().get(), all);
    const at::Tensor& value = variable.component(0);
    const ElementRange range = share_of(value.numel(), workers_->own(), workers_->count());
    // The rows of sparse gradients are known to all workers.
    const at::Tensor gradient =
        sums[i].is_sparse() ? elements_of(variable::dense_of(gradient_of_sum(sums[i])), range)
                            : sums[i].value;
    VariableState& state = variable.state_of_shares();
    state.cut_slots(key, hyper, range);
    variable.drop_other_slots(key);
    parts.push_back({variable, range, on_device(gradient, value.device()), hyper,
                     state.reserve_part(key, hyper, variable.name(), range)});
  }
  return parts;
}

void ShardedUpdates::step(const SlotKey& key, std::string_view what,
                          const std::vector<Variable>& variables,
                          std::vector<Reduction::Parts>& sums, std::span<const double> hyper,
                          const WorkerGradients::StateText& state) {
  check(key, variables);
  const c10::NoGradGuard no_grad;
  gradients_.sum(kApplyCall, what, variables, sums, numbers_of(key.rule, hyper), state,
                 WorkerGradients::Wanted::shares);
  COHORT_CHECK(std::ranges::any_of(sums, [](const auto& each) { return each.value.defined(); }),
               ErrorCode::invalid_argument, "[optimizer.minimize] ", no_gradient_text(variables));
  for (std::size_t i = 0; i < variables.size(); ++i) {
    COHORT_CHECK(
        !key.lazy_rows || !sums[i].is_sparse(), ErrorCode::unimplemented, "[", kApplyCall,
        "] expected an optimizer without lazy_rows for the sparse gradient of '",
        variables[i].name(),
        "', since each worker updates a share of the elements (shard_optimizer_state), got "
        "one with lazy_rows; leave out one of the two options");
  }
  note_holder();
  holder_.is_torn = true;
  ++holder_.steps;
  std::vector<Part> parts = parts_of(key, variables, sums, hyper);
  std::vector<OwnUpdate> own;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    MirroredVariable& variable = target_of(variables[i]).variable;
    if (!sums[i].value.defined() || !variable.is_on_read()) continue;
    const std::span<const double> numbers = key.hyper_of(variables[i].impl().get(), hyper);
    const at::Tensor gradient = variable::prepared_gradient(key, gradient_of_sum(sums[i]), numbers);
    for (std::size_t value = 0; value < variable.size(); ++value) {
      const c10::Device device = variable.component(value).device();
      own.push_back({variable, value, numbers,
                     variable.reserve(value, key, on_device(gradient, device), numbers)});
    }
  }
  std::vector<Pack> packs;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    std::vector<Part*> of_type;
    std::vector<std::int64_t> elements;
    for (Part& each : parts) {
      if (each.variable.spec().dtype != type) continue;
      of_type.push_back(&each);
      elements.push_back(each.variable.component(0).numel());
    }
    if (of_type.empty()) continue;
    packs.push_back({std::move(of_type), SharesToGather(type, std::move(elements), *workers_)});
  }
  // All slots before the first call: a worker that has come through it knows that the others have
  // updated theirs.
  for (Pack& pack : packs) pack.update(key);
  for (Pack& pack : packs)
    pack.shares.gather(*workers_, {.call = kApplyCall, .text = "new values of variables"});
  for (const Pack& pack : packs) pack.write();
  for (OwnUpdate& each : own)
    each.variable.apply(each.value, key, std::move(each.reserve), each.hyper);
  for (const Variable& each : variables) target_of(each).variable.know_values();
  holder_.is_torn = false;
}

}  // namespace cohort::internal
