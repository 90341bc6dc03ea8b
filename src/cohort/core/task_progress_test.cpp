// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/task_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/progress_bar.h"
#include "cohort/testing/fake_clock.h"

namespace cohort {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::Pair;

class ProgressMeterTest : public ::testing::Test {
 protected:
  // Steps, one each 0.1 s.
  void make(int steps) {
    for (int i = 0; i < steps; ++i) {
      clock.advance(100ms);
      meter.note_step();
    }
  }
  double rate() const { return meter.progress().steps_per_second; }

  testing::FakeClock clock;
  ProgressMeter meter{clock};
};

TEST_F(ProgressMeterTest, BeginsWithoutSteps) {
  clock.advance(1h);
  const TaskProgress progress = meter.progress();
  EXPECT_EQ(progress.steps, 0U);
  EXPECT_EQ(progress.steps_per_second, 0);
  EXPECT_FALSE(progress.since_last_step);
}

TEST_F(ProgressMeterTest, CountsStepsAndTheirRate) {
  make(1);
  EXPECT_EQ(rate(), 0);
  make(20);
  EXPECT_EQ(meter.progress().steps, 21U);
  EXPECT_DOUBLE_EQ(rate(), 10);
  EXPECT_EQ(meter.progress().since_last_step, 0ms);
}

TEST_F(ProgressMeterTest, ForgetsAnEarlierRate) {
  make(1000);
  for (int i = 0; i < 30; ++i) {
    clock.advance(1s);
    meter.note_step();
  }
  EXPECT_DOUBLE_EQ(rate(), 1);
}

TEST_F(ProgressMeterTest, TheRateOfAStoppedTaskFalls) {
  make(100);
  clock.advance(100s);
  EXPECT_LT(rate(), 0.6);
  EXPECT_EQ(meter.progress().since_last_step, 100s);
}

TEST(ProgressMeterOfProcess, HasWhatAProgressBarWasGiven) {
  ProgressBar bar({.steps = 500, .is_visible = false});
  bar.show(20, {{"loss", 0.5}, {"accuracy", 0.75}});
  const TaskProgress progress = ProgressMeter::of_process().progress();
  EXPECT_EQ(progress.program_step, 20);
  EXPECT_EQ(progress.program_steps, 500);
  EXPECT_THAT(progress.values, ElementsAre(Pair("accuracy", 0.75), Pair("loss", 0.5)));
  bar.show(21, 0.25);
  EXPECT_THAT(ProgressMeter::of_process().progress().values, ElementsAre(Pair("loss", 0.25)));
}

}  // namespace
}  // namespace cohort
