// SPDX-License-Identifier: Apache-2.0
// all_reduce() and all_gather() in a traced step.
#include <utility>

#include "cohort/replicas/reduction.h"
#include "cohort/replicas/step_run.h"
#include "cohort/strategy/replica_collective.h"
#include "cohort/workers/strategy_workers.h"
#include "cohort/workers/worker_values.h"

namespace cohort::internal {
namespace {

class JoinedCollective final : public JoinedCall {
 public:
  JoinedCollective(const CollectiveCall& call, StrategyWorkers* workers)
      : call_(call), workers_(workers) {}

  // Each replica computes the result itself: the same numbers in the same order.
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const std::size_t leaves = values.size();
    replica.own_offer().values = std::move(values);
    replica.meet();
    std::vector<at::Tensor> results;
    if (workers_ != nullptr && workers_->are_several()) {
      replica.over_workers([&] { replica.shared_sums() = combined_by_all(replica, leaves); });
      for (const at::Tensor& result : replica.shared_sums()) results.push_back(result.clone());
      replica.leave();
      return results;
    }
    for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
      std::vector<Reduction::Parts> parts;
      for (std::size_t r = 0; r < replica.count(); ++r)
        parts.push_back(call_.part_of(replica.of(r).values[leaf]));
      results.push_back(call_.combined(parts));
    }
    replica.leave();
    return results;
  }

 private:
  std::vector<at::Tensor> combined_by_all(const StepReplica& replica, std::size_t leaves) const {
    const auto own = [&] {
      Contributions parts(leaves);
      for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
        for (std::size_t r = 0; r < replica.count(); ++r)
          parts[leaf].push_back(call_.part_of(replica.of(r).values[leaf]));
      }
      return parts;
    };
    const Contributions all = of_all_workers(
        workers_, call_.name(), [&] { return call_.text(); }, own, call_.timeout);
    std::vector<at::Tensor> results;
    for (const std::vector<Reduction::Parts>& parts : all) results.push_back(call_.combined(parts));
    return results;
  }

  const CollectiveCall call_;
  StrategyWorkers* const workers_;
};

}  // namespace

std::unique_ptr<const JoinedCall> joined_collective(const CollectiveCall& call,
                                                    StrategyWorkers* workers) {
  return std::make_unique<JoinedCollective>(call, workers);
}

}  // namespace cohort::internal
