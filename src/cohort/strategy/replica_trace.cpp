// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/replica_trace.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"

namespace cohort::internal {
namespace {

thread_local ReplicaTrace* current_trace = nullptr;

class JoinedCount final : public JoinedCall {
 public:
  explicit JoinedCount(std::int64_t total) : total_(at::scalar_tensor(total, at::kLong)) {}
  std::vector<at::Tensor> run(StepReplica&, std::vector<at::Tensor>) const override {
    return {total_};
  }

 private:
  const at::Tensor total_;
};

// The number that a replica adds in traced_sum().
class CountCall final : public StepCall {
 public:
  CountCall(std::string_view call, std::int64_t own, void (*check)(std::int64_t))
      : call_(call), own_(own), check_(check) {}

  std::string text() const override { return call_; }
  std::unique_ptr<const JoinedCall> join(const std::vector<const StepCall*>& all) const override {
    return join_over_workers(all, 0);
  }
  std::int64_t count() const override { return own_; }
  std::unique_ptr<const JoinedCall> join_over_workers(const std::vector<const StepCall*>& all,
                                                      std::int64_t of_others) const override {
    std::int64_t total = of_others;
    for (const StepCall* each : all) total += static_cast<const CountCall*>(each)->own_;
    check_(total);
    return std::make_unique<JoinedCount>(total);
  }

 private:
  const std::string call_;
  const std::int64_t own_;
  void (*const check_)(std::int64_t);
};

}  // namespace

ReplicaTrace::ReplicaTrace(std::size_t replicas, std::vector<GatherSizes> gathers)
    : current_(current_trace, this), replicas_(replicas), gathers_(std::move(gathers)) {}

ReplicaTrace* ReplicaTrace::current() { return current_trace; }

void ReplicaTrace::begin_pass(const std::vector<at::Tensor>& inputs) {
  inputs_.clear();
  for (std::size_t i = 0; i < inputs.size(); ++i)
    inputs_.emplace(inputs[i].unsafeGetTensorImpl(), i);
  calls_.clear();
  changed_.clear();
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
  changed_.push_back(updated);
  return results;
}

GatherSizes ReplicaTrace::next_gather(std::int64_t own_size) {
  const std::size_t number = gathered_.size();
  gathered_.push_back(own_size);
  assumed_.push_back(number < gathers_.size() ? gathers_[number]
                                              : GatherSizes(replicas_, own_size));
  return assumed_.back();
}

at::Tensor traced_sum(ReplicaTrace& trace, std::string_view call, std::int64_t own,
                      void (*check)(std::int64_t)) {
  const auto example = [&]() -> std::vector<at::Tensor> {
    return {at::scalar_tensor(std::max<std::int64_t>(own, 1), at::kLong)};
  };
  return trace.record(std::make_shared<CountCall>(call, own, check), {}, {}, example).at(0);
}

}  // namespace cohort::internal
