// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epochs/epoch_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::coordinator::internal {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void run(EpochProgress& progress, std::size_t worker, std::uint64_t step) {
  progress.close_step(worker);
  progress.note_run(worker, step);
}
void end(EpochProgress& progress, std::size_t worker, std::uint64_t step) {
  progress.close_step(worker);
  progress.note_end(worker, step);
}

TEST(EpochProgress, ExpectsAnEndWhereTheDataSaysSoOrHasEnded) {
  EpochProgress progress(2);
  progress.expect(0, 1);
  for (int i = 0; i < 4; ++i) {
    progress.add_step(0);
    progress.add_step(1);
  }
  EXPECT_FALSE(progress.expects_end(0, 0));
  EXPECT_TRUE(progress.expects_end(0, 1));
  EXPECT_FALSE(progress.expects_end(1, 3));
  end(progress, 1, 2);
  EXPECT_FALSE(progress.expects_end(1, 1));
  EXPECT_TRUE(progress.expects_end(1, 2));
  run(progress, 0, 1);
  EXPECT_FALSE(progress.expects_end(0, 1)) << "too few of its steps have ended";
  EXPECT_TRUE(progress.has_open());
}

TEST(EpochProgress, NumbersTheStepsOfEachWorker) {
  EpochProgress progress(2);
  EXPECT_EQ(progress.add_step(0), 0U);
  EXPECT_EQ(progress.add_step(0), 1U);
  EXPECT_EQ(progress.add_step(1), 0U);
  EXPECT_FALSE(progress.wants_step(0, 2));
  EXPECT_TRUE(progress.wants_step(1, 2));
}

// Regression: each step after the end took a number of the learning rate's schedule.
TEST(EpochProgress, WantsOneStepMoreThanItsDataHasElements) {
  EpochProgress progress(2);
  progress.expect(0, 3);
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(progress.wants_step(0, 100)) << i;
    progress.add_step(0);
  }
  EXPECT_FALSE(progress.wants_step(0, 100));
  for (int i = 0; i < 50; ++i) progress.add_step(1);
  EXPECT_TRUE(progress.wants_step(1, 100)) << "its number of elements is not known";
  // The data has more elements than its cardinality.
  progress.note_run(0, 3);
  EXPECT_TRUE(progress.wants_step(0, 100));
}

TEST(EpochProgress, IsOverWhenEveryWorkerHasEndedAndNothingIsOpen) {
  EpochProgress progress(2);
  for (int i = 0; i < 3; ++i) progress.add_step(0);
  progress.add_step(1);
  end(progress, 1, 0);
  end(progress, 0, 2);
  end(progress, 0, 1);
  EXPECT_FALSE(progress.is_over()) << "step 0 of worker 0 runs";
  EXPECT_FALSE(progress.wants_step(0, 9));
  run(progress, 0, 0);
  EXPECT_TRUE(progress.is_over());
  EXPECT_THAT(progress.steps(), ElementsAre(1, 0));
  EXPECT_FALSE(progress.contradiction());
}

TEST(EpochProgress, AnEndBeforeAnElementThatCameIsAContradiction) {
  EpochProgress progress(1);
  for (int i = 0; i < 3; ++i) progress.add_step(0);
  run(progress, 0, 2);
  end(progress, 0, 0);
  end(progress, 0, 1);
  ASSERT_TRUE(progress.contradiction());
  EXPECT_THAT(progress.contradiction()->message(), HasSubstr("end after 0 steps"));
  EXPECT_EQ(progress.contradiction()->origin(), "worker:0");
}

}  // namespace
}  // namespace cohort::coordinator::internal
