// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/degree_tuner.h"

#include <gtest/gtest.h>

#include <functional>

namespace cohort::data {
namespace {

using std::chrono::microseconds;

// Simulates a machine: feeds the tuner results at the rate of its current degree.
struct Machine {
  DegreeTuner tuner;
  TimePoint now = TimePoint(std::chrono::hours(1));

  void run(int results, bool must_wait, const std::function<microseconds(std::size_t)>& time) {
    for (int i = 0; i < results; ++i) {
      now += time(tuner.degree());
      tuner.note_result(now, must_wait);
    }
  }
};

microseconds scaling(std::size_t degree) {
  return microseconds(12'000 / static_cast<std::int64_t>(degree));
}

TEST(DegreeTuner, GrowsWhileTheRateRises) {
  Machine machine{DegreeTuner(6)};
  machine.run(2'000, true, scaling);
  EXPECT_EQ(machine.tuner.degree(), 6);
}

TEST(DegreeTuner, StopsWhereMoreCallsAreNoFaster) {
  Machine machine{DegreeTuner(64)};
  machine.run(300, true,
              [](std::size_t degree) { return scaling(std::min<std::size_t>(degree, 3)); });
  EXPECT_EQ(machine.tuner.degree(), 3);
}

TEST(DegreeTuner, StaysAtOneWhereNobodyWaits) {
  Machine machine{DegreeTuner(64)};
  machine.run(2'000, false, scaling);
  EXPECT_EQ(machine.tuner.degree(), 1);
}

TEST(DegreeTuner, LooksAgainWhenTheLoadChanged) {
  Machine machine{DegreeTuner(4)};
  machine.run(200, true, [](std::size_t) { return microseconds(1'000); });
  EXPECT_EQ(machine.tuner.degree(), 1);
  machine.run(3'000, true, scaling);
  EXPECT_EQ(machine.tuner.degree(), 4);
}

}  // namespace
}  // namespace cohort::data
