// SPDX-License-Identifier: Apache-2.0
// The trace of a step in one replica: records what the step does with the other replicas and with
// variables.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cohort/strategy/mirrored/mirrored_home.h"
#include "cohort/strategy/traced/step_call.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

// The sizes that the replicas' parts of one all_gather() have along its axis.
using GatherSizes = std::vector<std::int64_t>;

// Current on its thread while it exists, inside of which the passes of one trace run. Used only
// from that thread.
class ReplicaTrace final : public UpdateRecorder {
 public:
  using Calls = std::vector<std::shared_ptr<const StepCall>>;
  // `home`: nullptr for a strategy without variables. `gathers`: the sizes in each all_gather() of
  // the step, in their order; where it has none, all replicas have the size of this one.
  ReplicaTrace(MirroredHome* home, std::size_t replicas, std::vector<GatherSizes> gathers);
  ~ReplicaTrace() override;
  ReplicaTrace(const ReplicaTrace&) = delete;
  ReplicaTrace& operator=(const ReplicaTrace&) = delete;
  // nullptr outside of such a trace.
  static ReplicaTrace* current();

  const MirroredHome* home() const { return home_; }
  std::size_t replicas() const { return replicas_; }
  // Called at the beginning of each pass, with the arguments as the step gets them.
  void begin_pass(const std::vector<at::Tensor>& inputs);
  TensorIdentity identity_of(const at::Tensor& tensor) const;
  // Records a call with these values, which changes the tensors `updated` of variables. Returns the
  // results of `example`, which are as those of the call.
  std::vector<at::Tensor> record(std::shared_ptr<const StepCall> call,
                                 const std::vector<at::Tensor>& values,
                                 const std::vector<at::Tensor>& updated,
                                 const std::function<std::vector<at::Tensor>()>& example);
  // The number of the next all_reduce() or all_gather(), or gradient of one.
  std::size_t next_collective() { return collectives_++; }
  // For the next all_gather(), to which this replica brings a part of this size.
  GatherSizes next_gather(std::int64_t own_size);
  // The sizes of this replica's parts, and all sizes as next_gather() has given them, in the last
  // pass.
  const std::vector<std::int64_t>& gathered() const { return gathered_; }
  const std::vector<GatherSizes>& assumed() const { return assumed_; }
  // The calls of the last pass.
  const Calls& calls() const { return calls_; }

  void assign(std::span<const Assignment> assignments) override;
  void scatter(std::span<const RowUpdate> updates) override;
  void apply(const SlotKey& key, std::span<const Update> updates,
             std::span<const at::Tensor> hyper) override;

 private:
  ReplicaTrace* const outer_;
  MirroredHome* const home_;
  const std::size_t replicas_;
  const std::vector<GatherSizes> gathers_;
  std::size_t collectives_ = 0;
  std::vector<std::int64_t> gathered_;
  std::vector<GatherSizes> assumed_;
  // Only compared, within one pass. Owning them would look as if the step had kept its arguments.
  std::unordered_map<const c10::TensorImpl*, std::size_t> inputs_;  // their positions
  Calls calls_;
};

// The calls that it records. `value`: of the variable's values, the one that a call for this
// replica alone changes; none: the replicas change all of them together.
std::shared_ptr<const StepCall> assign_call(const Assignment& assignment, TensorIdentity identity,
                                            std::optional<std::size_t> value);
std::shared_ptr<const StepCall> scatter_call(const RowUpdate& update, TensorIdentity indices,
                                             TensorIdentity rows, std::optional<std::size_t> value);
// The values of the call are the gradients that are defined.
std::shared_ptr<const StepCall> apply_call(const SlotKey& key, std::span<const Update> updates,
                                           std::span<const at::Tensor> hyper);

}  // namespace cohort::internal
