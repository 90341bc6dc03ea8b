// SPDX-License-Identifier: Apache-2.0
#include "cohort/input/per_replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "cohort/testing/throws_error.h"

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

// Regression: these threw std::out_of_range.
TEST(DistributedElement, CountsOfAReplicaThatDoesNotExistAreRefused) {
  const DistributedElement element(PerReplica<Nest>({Nest(1), Nest(2)}),
                                   {.examples = {3, -1}, .global_num_examples = {}});
  EXPECT_TRUE(element.has_data(0));
  EXPECT_EQ(element.num_examples(0), 3);
  EXPECT_FALSE(element.has_data(1));
  EXPECT_EQ(element.num_examples(1), 0);
  const auto refused = testing::throws_error(ErrorCode::invalid_argument,
                                             "expected a replica below 2, got 2; local replicas");
  EXPECT_THAT([&] { element.has_data(2); }, refused);
  EXPECT_THAT([&] { element.num_examples(2); }, refused);
  EXPECT_THAT([&] { element[2]; }, refused);
}

}  // namespace
}  // namespace cohort
