// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/thread_value.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vector>

namespace cohort::internal {
namespace {

std::vector<int>& numbers() { return ThreadValue<std::vector<int>, struct Numbers>::get(); }
std::vector<int>& others() { return ThreadValue<std::vector<int>, struct Others>::get(); }

TEST(ThreadValueTest, EachThreadHasItsOwn) {
  numbers().push_back(1);
  EXPECT_TRUE(others().empty());
  std::thread([] {
    EXPECT_TRUE(numbers().empty());
    numbers().push_back(2);
  }).join();
  EXPECT_EQ(numbers(), std::vector{1});
  numbers().clear();
}

// A thread_local vector would have been written to after its end.
TEST(ThreadValueDeathTest, CanBeUsedInAnExitHandler) {
  const auto exit_with_handler = [] {
    std::atexit([] {
      const bool is_new = numbers().empty();
      numbers().push_back(1);
      std::_Exit(is_new && numbers().size() == 1 ? 0 : 1);
    });
    numbers().assign(100, 7);
    std::exit(2);
  };
  EXPECT_EXIT(exit_with_handler(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace cohort::internal
