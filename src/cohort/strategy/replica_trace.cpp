// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_trace.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"

namespace cohort::internal {
namespace {

thread_local ReplicaTrace* current_trace = nullptr;

}  // namespace

ReplicaTrace::ReplicaTrace(std::size_t replicas, std::vector<GatherSizes> gathers)
    : current_(current_trace, this), replicas_(replicas), gathers_(std::move(gathers)) {}

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

}  // namespace cohort::internal
