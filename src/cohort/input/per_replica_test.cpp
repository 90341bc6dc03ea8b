// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/per_replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace cohort {
namespace {

// The loop read components that were destroyed already.
TEST(PerReplica, ALoopMayRunOverTheResultsOfATemporary) {
  const auto values = [] {
    return PerReplica<std::shared_ptr<int>>({std::make_shared<int>(1), std::make_shared<int>(2)});
  };
  int sum = 0;
  for (const std::shared_ptr<int>& one : values().local_results()) {
    ASSERT_EQ(one.use_count(), 1);
    sum += *one;
  }
  EXPECT_EQ(sum, 3);
}

TEST(PerReplica, AKeptValueGivesItsResultsWithoutACopy) {
  const PerReplica<int> kept({1, 2});
  EXPECT_EQ(&kept.local_results(), &kept.local_results());
  EXPECT_THAT(kept.local_results(), ::testing::ElementsAre(1, 2));
}

}  // namespace
}  // namespace cohort
