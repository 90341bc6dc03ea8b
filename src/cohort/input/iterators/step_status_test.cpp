// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/iterators/step_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cohort/collective/group.h"
#include "cohort/testing/on_workers.h"

namespace cohort::input {
namespace {

TEST(StepStatus, AddsUpAndTheFirstErrorCounts) {
  const InProcessWorkers workers(3);
  const auto origins = testing::on_workers<std::string>(3, [&](int rank) {
    const auto group = workers.group(rank);
    StepStatus mine{.components = 1, .examples = rank, .costs_batch = rank == 2};
    if (rank > 0) {
      mine.error = Error(ErrorCode::data_loss, "bad " + std::to_string(rank)).during("reading");
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    const StepStatus all = sum_of(group->exchange(encode(mine), "a status", deadline), *group);
    EXPECT_EQ(all.components, 3);
    EXPECT_EQ(all.examples, 3);
    EXPECT_TRUE(all.costs_batch);
    EXPECT_THAT(all.error->context(), ::testing::ElementsAre("reading"));
    return all.error->origin() + " " + all.error->message();
  });
  EXPECT_THAT(origins, ::testing::Each("worker:1 bad 1"));
}

}  // namespace
}  // namespace cohort::input
