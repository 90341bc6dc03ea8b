// SPDX-License-Identifier: Apache-2.0
// The trace of a step in one replica: records what the step does with the other replicas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohort/core/thread_value.h"
#include "cohort/replicas/step_call.h"

namespace cohort::internal {

// The sizes that the replicas' parts of one all_gather() have along its axis.
using GatherSizes = std::vector<std::int64_t>;

// Current on its thread while it exists, inside of which the passes of one trace run. Used only
// from that thread.
class ReplicaTrace {
 public:
  using Calls = std::vector<std::shared_ptr<const StepCall>>;
  // `gathers`: the sizes in each all_gather() of the step, in their order; where it has none, all
  // replicas have the size of this one.
  ReplicaTrace(std::size_t replicas, std::vector<GatherSizes> gathers);
  virtual ~ReplicaTrace() = default;
  // nullptr outside of such a trace.
  static ReplicaTrace* current();

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
  // The calls of the last pass, and the tensors of variables that each of them changes.
  const Calls& calls() const { return calls_; }
  const std::vector<std::vector<at::Tensor>>& changed() const { return changed_; }

 private:
  const ScopedValue<ReplicaTrace*> current_;
  const std::size_t replicas_;
  const std::vector<GatherSizes> gathers_;
  std::size_t collectives_ = 0;
  std::vector<std::int64_t> gathered_;
  std::vector<GatherSizes> assumed_;
  // Only compared, within one pass. Owning them would look as if the step had kept its arguments.
  std::unordered_map<const c10::TensorImpl*, std::size_t> inputs_;  // their positions
  Calls calls_;
  std::vector<std::vector<at::Tensor>> changed_;
};

// Records that this replica adds `own` to a sum over the replicas, which all make this call, and
// returns the sum: int64, one number. When programs are joined, calls check(sum), which may throw.
// `call` is for messages.
at::Tensor traced_sum(ReplicaTrace& trace, std::string_view call, std::int64_t own,
                      void (*check)(std::int64_t));

}  // namespace cohort::internal
