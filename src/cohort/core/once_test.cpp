// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/once.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <vector>

namespace cohort {
namespace {

TEST(Once, RunsTheFirstFunctionAlone) {
  Once once;
  int runs = 0;
  for (int i = 0; i < 3; ++i) once.call([&] { ++runs; });
  EXPECT_EQ(runs, 1);
}

TEST(Once, RunsAgainAfterAFunctionThatThrew) {
  Once once;
  int runs = 0;
  const auto fail_twice = [&] {
    if (++runs < 3) throw std::runtime_error("not yet");
  };
  EXPECT_THROW(once.call(fail_twice), std::runtime_error);
  EXPECT_THROW(once.call(fail_twice), std::runtime_error);
  once.call(fail_twice);
  once.call(fail_twice);
  EXPECT_EQ(runs, 3);
}

TEST(Once, EveryThreadSeesWhatTheFunctionWrote) {
  for (int round = 0; round < 50; ++round) {
    Once once;
    std::vector<int> written;
    std::atomic<int> seen{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        once.call([&] { written.assign(100, 1); });
        seen += static_cast<int>(written.size());
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(seen, 400);
  }
}

}  // namespace
}  // namespace cohort
