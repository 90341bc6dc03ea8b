// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/brief_yields.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace cohort::collective {
namespace {

bool never() { return false; }

TEST(BriefYields, EndsWhenTheConditionIsTrue) {
  BriefYields yields;
  int tries = 0;
  EXPECT_TRUE(yields.wait([&] { return ++tries == 1; }));
  EXPECT_EQ(tries, 1);
  EXPECT_FALSE(yields.wait(never));
}

TEST(BriefYields, SleepsAfterAYieldThatTookLong) {
  BriefYields yields;
  int num_yields = 0;
  const auto long_yield = [&] {
    num_yields += 1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // as another program would take it
  };
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(yields.wait(never, long_yield));
  EXPECT_EQ(num_yields, 1);
  EXPECT_FALSE(yields.wait(never, long_yield));
  if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(100)) {
    EXPECT_EQ(num_yields, 1);
  }
}

TEST(BriefYields, SeesWhatHappenedDuringALongYield) {
  BriefYields yields;
  bool is_done = false;
  EXPECT_TRUE(yields.wait([&] { return is_done; },
                          [&] {
                            std::this_thread::sleep_for(std::chrono::milliseconds(1));
                            is_done = true;
                          }));
}

}  // namespace
}  // namespace cohort::collective
