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

  // Each replica of one worker computes the result itself: the same numbers in the same order.
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const std::size_t leaves = values.size();
    replica.own_offer().values = std::move(values);
    replica.meet();
    const bool are_several = workers_ != nullptr && workers_->are_several();
    auto results = replica.together(are_several, [&] { return combined(replica, leaves); });
    for (at::Tensor& result : results) {
      if (are_several) result = result.clone();
    }
    replica.leave();
    return results;
  }

 private:
  std::vector<at::Tensor> combined(const StepReplica& replica, std::size_t leaves) const {
    const auto own = [&] {
      Contributions parts(leaves);
      for (std::size_t leaf = 0; leaf < leaves; ++leaf) {
        for (std::size_t r = 0; r < replica.count(); ++r)
          parts[leaf].push_back(call_.part_of(replica.of(r).values[leaf]));
      }
      return parts;
    };
    std::vector<at::Tensor> results;
    for (const std::vector<Reduction::Parts>& parts : of_all_workers(
             workers_, call_.name(), [&] { return call_.text(); }, own, call_.timeout))
      results.push_back(call_.combined(parts));
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
