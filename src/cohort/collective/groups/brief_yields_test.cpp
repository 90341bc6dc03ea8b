// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/groups/brief_yields.h"

#include <gtest/gtest.h>

#include <chrono>

namespace cohort::collective {
namespace {

bool never() { return false; }

// What a yield is on a busy machine.
void run_another_program() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  while (std::chrono::steady_clock::now() < end) continue;
}

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
    run_another_program();
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
                            run_another_program();
                            is_done = true;
                          }));
}

}  // namespace
}  // namespace cohort::collective
