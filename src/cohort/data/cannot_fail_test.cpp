// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/cannot_fail.h"

#include <gtest/gtest.h>

namespace cohort::data {
namespace {

TEST(CannotFail, HoldsForOpsWithoutUserCodeAndFiles) {
  const Dataset range = Dataset::range(8);
  EXPECT_TRUE(cannot_fail(range.shuffle(4).repeat(2).shard(2, 0).skip(1).take(4).prefetch(1)));
  EXPECT_TRUE(cannot_fail(Dataset::zip({range, range.concatenate(range)}).enumerate()));
  EXPECT_FALSE(cannot_fail(range.map([](std::int64_t x) { return x; })));
  EXPECT_FALSE(cannot_fail(range.map([](std::int64_t x) { return x; }).prefetch(1)));
  EXPECT_FALSE(cannot_fail(range.unique())) << "its cardinality is unknown";
}

TEST(CannotFail, HoldsForABatchOfStaticShapes) {
  const Dataset rows = Dataset::range(8).batch(3);
  EXPECT_TRUE(cannot_fail(rows));
  EXPECT_FALSE(cannot_fail(rows.batch(2))) << "the last row is shorter than the others";
  EXPECT_TRUE(cannot_fail(Dataset::range(8).batch(2, {.drop_remainder = true}).batch(2)));
}

}  // namespace
}  // namespace cohort::data
