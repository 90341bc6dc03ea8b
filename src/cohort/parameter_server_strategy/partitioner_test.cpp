// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::ElementsAre;
using testing::throws_error;

TensorSpec spec_of(std::vector<std::int64_t> sizes, at::ScalarType dtype = at::kFloat) {
  return {dtype, std::move(sizes)};
}

TEST(Partitioner, OfAFixedNumberHasNoMoreShardsThanRows) {
  EXPECT_THAT(FixedShardsPartitioner(2)(spec_of({10, 3})), ElementsAre(2, 1));
  EXPECT_THAT(FixedShardsPartitioner(4)(spec_of({3})), ElementsAre(3));
  EXPECT_THAT(FixedShardsPartitioner(4)(spec_of({10, 3}), 1), ElementsAre(1, 3));
  EXPECT_THAT(FixedShardsPartitioner(0)(spec_of({10, 3})), ElementsAre(0, 1));
}

TEST(Partitioner, ByMinimumSize) {
  const auto shards = [](std::int64_t bytes, std::int64_t max, const TensorSpec& spec) {
    return MinSizePartitioner({.min_shard_bytes = bytes, .max_shards = max})(spec).front();
  };
  EXPECT_EQ(shards(4, 2, spec_of({6, 1})), 2);
  EXPECT_EQ(shards(4, 10, spec_of({6, 1})), 6);
  EXPECT_EQ(shards(256 << 10, 16, spec_of({1024, 1024})), 16);
  EXPECT_EQ(shards(64 << 20, 2, spec_of({10}, at::kLong)), 1);
  EXPECT_EQ(shards(1000, 10, spec_of({5, 100})), 2);
  EXPECT_EQ(shards(8, 3, spec_of({100}, kString)), 3);
  EXPECT_EQ(shards(32, 4, spec_of({0, 6})), 1);
}

TEST(Partitioner, ByMaximumSize) {
  const auto shards = [](std::int64_t bytes, std::int64_t max, const TensorSpec& spec) {
    return MaxSizePartitioner({.max_shard_bytes = bytes, .max_shards = max})(spec).front();
  };
  EXPECT_EQ(shards(4, 0, spec_of({6, 1})), 6);
  EXPECT_EQ(shards(4, 2, spec_of({6, 1})), 2);
  EXPECT_EQ(shards(1024, 0, spec_of({6, 1})), 1);
  EXPECT_EQ(shards(1000, 0, spec_of({10, 100})), 5);
  EXPECT_EQ(shards(1300, 0, spec_of({7, 100})), 3);
  EXPECT_EQ(shards(1000, 0, spec_of({4, 1000})), 4);
  EXPECT_EQ(shards(1000, 0, spec_of({100}, kString)), 2);
  EXPECT_EQ(shards(32, 0, spec_of({0, 6})), 1);
}

TEST(Partitioner, RefusesOptionsBelowOne) {
  EXPECT_THAT(
      [] { MinSizePartitioner({.min_shard_bytes = -5}); },
      throws_error(ErrorCode::invalid_argument, "expected min_shard_bytes of at least 1, got -5"));
  EXPECT_THAT([] { MinSizePartitioner({.max_shards = 0}); },
              throws_error(ErrorCode::invalid_argument, "max_shards"));
  EXPECT_THAT([] { MaxSizePartitioner({.max_shard_bytes = 0}); },
              throws_error(ErrorCode::invalid_argument, "max_shard_bytes"));
  EXPECT_THAT([] { MaxSizePartitioner({.max_shard_bytes = 8, .bytes_per_string = 0}); },
              throws_error(ErrorCode::invalid_argument, "bytes_per_string"));
}

TEST(Partitioner, RefusesUnknownSizesAndAxesThatAreNot) {
  EXPECT_THAT(
      [] {
        FixedShardsPartitioner(2)(spec_of({-1, 6}));
      },
      throws_error(ErrorCode::invalid_argument, "expected known sizes, got float32[?, 6]"));
  EXPECT_THAT([] { MinSizePartitioner()(spec_of({6}), 1); },
              throws_error(ErrorCode::invalid_argument, "expected an axis of float32[6], got 1"));
}

}  // namespace
}  // namespace cohort
