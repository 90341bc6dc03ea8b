// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/spin.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace cohort {
namespace {

bool never() { return false; }

// A yield on a busy machine.
void run_another_program() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (std::chrono::steady_clock::now() < end) continue;
}

TEST(Spin, LooksUntilTheConditionIsTrueAndNotMoreOftenThanToldTo) {
  int looks = 0;
  int pauses = 0;
  const auto count_pause = [&] { ++pauses; };
  EXPECT_TRUE(spin(
      5, [&] { return ++looks == 3; }, count_pause));
  EXPECT_EQ(looks, 3);
  EXPECT_EQ(pauses, 2);
  EXPECT_FALSE(spin(5, never, count_pause));
  EXPECT_EQ(pauses, 7);
}

TEST(Spin, LooksOnceEvenWithoutTime) {
  EXPECT_TRUE(spin_for(Duration::zero(), [] { return true; }));
  int looks = 0;
  EXPECT_FALSE(spin_for(Duration::zero(), [&] { return ++looks > 1; }));
  EXPECT_EQ(looks, 1);
}

TEST(Spin, OneThreadHasACoreAndAMillionHaveNot) {
  if (std::thread::hardware_concurrency() > 0) {
    EXPECT_TRUE(has_core_each(1));
  }
  EXPECT_FALSE(has_core_each(1'000'000));
}

TEST(BriefWait, EndsWhenTheConditionIsTrue) {
  BriefWait briefly(1);
  int tries = 0;
  EXPECT_TRUE(briefly.wait([&] { return ++tries == 1; }));
  EXPECT_EQ(tries, 1);
  EXPECT_FALSE(briefly.wait(never));
}

TEST(BriefWait, SleepsAfterAYieldThatTookLong) {
  BriefWait briefly(1);
  int num_yields = 0;
  const auto long_yield = [&] {
    num_yields += 1;
    run_another_program();
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(briefly.wait(never, long_yield));
  EXPECT_EQ(num_yields, 1);
  EXPECT_FALSE(briefly.wait(never, long_yield));
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100)) {
    EXPECT_EQ(num_yields, 1);
  }
}

TEST(BriefWait, SeesWhatHappenedDuringALongYield) {
  BriefWait briefly(1);
  bool is_done = false;
  EXPECT_TRUE(briefly.wait([&] { return is_done; },
                           [&] {
                             run_another_program();
                             is_done = true;
                           }));
}

}  // namespace
}  // namespace cohort
