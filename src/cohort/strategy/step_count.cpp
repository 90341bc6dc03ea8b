// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/step_count.h"

#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cohort/replicas/step_call.h"

namespace cohort::internal {
namespace {

class JoinedCount final : public JoinedCall {
 public:
  explicit JoinedCount(std::int64_t total) : total_(at::scalar_tensor(total, at::kLong)) {}
  std::vector<at::Tensor> run(StepReplica&, std::vector<at::Tensor>) const override {
    return {total_};
  }

 private:
  const at::Tensor total_;
};

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

at::Tensor traced_sum(ReplicaTrace& trace, std::string_view call, std::int64_t own,
                      void (*check)(std::int64_t)) {
  const auto example = [&]() -> std::vector<at::Tensor> {
    return {at::scalar_tensor(std::max<std::int64_t>(own, 1), at::kLong)};
  };
  return trace.record(std::make_shared<CountCall>(call, own, check), {}, {}, example).at(0);
}

}  // namespace cohort::internal
