// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/traced/variable_trace.h"

#include "cohort/core/error.h"
#include "cohort/synchronous/mirrored/combined_writes.h"
#include "cohort/synchronous/mirrored/value_updates.h"

namespace cohort::internal {
namespace {

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
  const std::size_t here = target.variable.mirrored_home().component_here();
  COHORT_CHECK(!target.component || *target.component == here, ErrorCode::unimplemented,
               "[strategy.function] expected a replica to write its own component, got '",
               variable.name(), "' in replica ", here,
               "; call run() instead, or write each component outside of the step");
  return target.variable.component(here);
}

}  // namespace

void VariableTrace::write(std::span<const VariableWrite> writes) {
  for (const VariableWrite& each : writes) {
    check_write(each, /*is_of_all=*/false);
    const auto reach = own_value(home_.reach_of(each.variable, home_.place_here(), call_of(each)));
    const std::vector<at::Tensor> tensors = write_tensors(each);
    std::vector<TensorIdentity> identities;
    for (const at::Tensor& tensor : tensors) identities.push_back(identity_of(tensor));
    record(write_call(each, std::move(identities), reach), tensors, {own_tensor(each.variable)},
           nothing);
  }
}

void VariableTrace::apply(const SlotKey& key, std::span<const Update> updates,
                          std::span<const at::Tensor> hyper) {
  std::vector<at::Tensor> gradients, updated;
  for (const Update& update : updates) {
    check_is_whole(update.variable);
    updated.push_back(own_tensor(update.variable));
    if (update.gradient.defined()) gradients.push_back(update.gradient);
  }
  record(apply_call(key, updates, hyper), gradients, updated, nothing);
}

UpdateRecorder* MirroredHome::recorder() {
  auto* const trace = dynamic_cast<VariableTrace*>(ReplicaTrace::current());
  return trace != nullptr && &trace->home() == this ? trace : nullptr;
}

}  // namespace cohort::internal
