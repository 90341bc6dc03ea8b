// SPDX-License-Identifier: Apache-2.0
// all_reduce() and all_gather() in a traced step.
#include <utility>

#include "cohort/strategy/internal/reduction.h"
#include "cohort/strategy/internal/replica_collective.h"
#include "cohort/strategy/internal/traced/step_run.h"

namespace cohort::internal {
namespace {

class JoinedCollective final : public JoinedCall {
 public:
  explicit JoinedCollective(const CollectiveCall& call) : call_(call) {}

  // Each replica computes the result itself: the same numbers in the same order.
  std::vector<at::Tensor> run(StepReplica& replica, std::vector<at::Tensor> values) const override {
    const std::size_t leaves = values.size();
    replica.own_offer().values = std::move(values);
    replica.meet();
    std::vector<at::Tensor> results;
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
  const CollectiveCall call_;
};

}  // namespace

std::unique_ptr<const JoinedCall> joined_collective(const CollectiveCall& call) {
  return std::make_unique<JoinedCollective>(call);
}

}  // namespace cohort::internal
