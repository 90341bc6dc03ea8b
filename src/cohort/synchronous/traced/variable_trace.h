// SPDX-License-Identifier: Apache-2.0
// The trace of a step in a replica of a strategy that has variables: also records what the step
// writes into them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cohort/replicas/step_call.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/synchronous/mirrored/mirrored_home.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

// As ReplicaTrace.
class VariableTrace final : public ReplicaTrace, public UpdateRecorder {
 public:
  VariableTrace(MirroredHome& home, std::size_t replicas, std::vector<GatherSizes> gathers)
      : ReplicaTrace(replicas, std::move(gathers)), home_(home) {}
  const MirroredHome& home() const { return home_; }

  void write(std::span<const VariableWrite> writes) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const at::Tensor> hyper) override;
  std::vector<at::Tensor> sum_over_replicas(std::span<const Update> gradients) override;

 private:
  MirroredHome& home_;
};

// The calls that it records. `value`: of the variable's values, the one that a call for this
// replica alone changes; none: the replicas change all of them together.
// `identities`: of the tensors of the write.
std::shared_ptr<const StepCall> write_call(const VariableWrite& write,
                                           std::vector<TensorIdentity> identities,
                                           std::optional<std::size_t> value);
// The values of the call are the gradients that are defined.
std::shared_ptr<const StepCall> apply_call(const SlotKey& key, std::span<const Update> updates,
                                           std::span<const at::Tensor> hyper);

}  // namespace cohort::internal
