// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "cohort/collective/process_groups.h"
#include "cohort/collective/worker_calls.h"
#include "cohort/core/clock.h"
#include "cohort/workers/strategy_workers.h"

namespace cohort::internal {
namespace {

// The others need five seconds to end.
class SlowlyEndingGroups final : public WorkerGroups {
 public:
  collective::Membership form(Deadline /*deadline*/, Duration /*return_wait*/) override {
    return {};
  }
  bool have_others_ended(Deadline deadline) override {
    return deadline.remaining() > std::chrono::seconds(5);
  }
};

bool have_others_ended(Duration timeout) {
  StrategyWorkers workers(nullptr, timeout, 1, std::make_shared<collective::WorkerCalls>());
  const auto groups = std::make_shared<SlowlyEndingGroups>();
  workers.ask_groups(groups);
  return workers.have_others_ended();
}

// Regression: the first worker, which saves alone at the end of a job, waited two seconds for the
// end of the others. On a loaded host it took them for workers that go on, and did not save.
TEST(EndedWorkers, MayEndSlowly) { EXPECT_TRUE(have_others_ended(std::chrono::seconds(60))); }

TEST(EndedWorkers, AreNotAwaitedLongerThanInACall) {
  EXPECT_FALSE(have_others_ended(std::chrono::seconds(1)));
}

}  // namespace
}  // namespace cohort::internal
