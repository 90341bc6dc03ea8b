// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Shard, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(11).shard(3, 1); }},
        DatasetOpCase{"Tensors", [] { return tensors(11).shard(3, 1); }},
        DatasetOpCase{"OfShuffled",
                      [] {
                        return rows(11)
                            .shuffle(4, {.seed = 1, .reshuffle_each_iteration = false})
                            .shard(2, 1);
                      }},
        DatasetOpCase{"NonEmpty", [] { return Dataset(sharded(tensors(11).node(), 3, 1)); }},
        DatasetOpCase{"NonEmptyRows", [] { return Dataset(sharded(rows(11).node(), 3, 1)); }},
        DatasetOpCase{
            .name = "NoElement", .make = [] { return rows(2).shard(3, 2); }, .is_empty = true}));

class ShardOfBothKinds : public ::testing::TestWithParam<bool> {
 protected:
  static Dataset numbers(std::int64_t count) { return GetParam() ? rows(count) : tensors(count); }
};
INSTANTIATE_TEST_SUITE_P(Shard, ShardOfBothKinds, ::testing::Bool());

TEST_P(ShardOfBothKinds, KeepsEveryNthElement) {
  EXPECT_THAT(scalars_of(numbers(10).shard(3, 0)), ElementsAre(0, 3, 6, 9));
  EXPECT_THAT(scalars_of(numbers(10).shard(3, 2)), ElementsAre(2, 5, 8));
  EXPECT_THAT(scalars_of(numbers(10).shard(1, 0)), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
}

TEST_P(ShardOfBothKinds, MayBeSharded) {
  EXPECT_THAT(scalars_of(numbers(16).shard(2, 1).shard(3, 1)), ElementsAre(3, 9, 15));
}

TEST(Shard, CountsItsElements) {
  EXPECT_EQ(rows(10).shard(3, 0).cardinality(), 4);
  EXPECT_EQ(rows(10).shard(3, 1).cardinality(), 3);
  EXPECT_EQ(rows(10).repeat().shard(3, 1).cardinality(), kInfiniteCardinality);
}

TEST(Shard, TakesThePartOfItsInputPipeline) {
  const InputContext input{
      .num_input_pipelines = 2, .input_pipeline_id = 1, .num_replicas_in_sync = 2};
  EXPECT_THAT(scalars_of(rows(5).shard(input)), ElementsAre(1, 3));
}

// An error replaces its element, even an element of another shard, and the element numbers stay
// aligned.
TEST(Shard, KeepsItsElementsBehindAnError) {
  const Dataset failing = rows(8).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 2, ErrorCode::invalid_argument, "two");
    return x;
  });
  EXPECT_THAT(elements_of(failing.shard(2, 1)),
              ElementsAre("1", "error invalid_argument", "3", "5", "7"));
}

TEST(Shard, IsAPlaceHolderByHint) {
  const Dataset dataset = rows(10).shard(kShardHint, 0);
  EXPECT_EQ(dataset.cardinality(), kUnknownCardinality);
  EXPECT_EQ(error_of([&] { dataset.iterator(); }).code(), ErrorCode::failed_precondition);
  EXPECT_EQ(find_integer(*shipped(dataset).node(), "num_shards"), kShardHint);
  const auto same = [](at::Tensor x) { return x; };
  EXPECT_EQ(dataset.map(same).element_spec().to_string(), "int64[]");
}

class ShardOfTooFew : public ::testing::TestWithParam<bool> {
 protected:
  static Dataset shard(std::int64_t elements, std::int64_t count, std::int64_t index) {
    return Dataset(sharded((GetParam() ? rows(elements) : tensors(elements)).node(), count, index));
  }
};
INSTANTIATE_TEST_SUITE_P(Shard, ShardOfTooFew, ::testing::Bool());

TEST_P(ShardOfTooFew, FailsAtItsFirstElementNamingTheCounts) {
  for (const std::int64_t index : {0, 1}) {
    Iterator iterator = shard(2, 4, index).iterator();
    const Error error = error_of([&] { iterator.try_next(); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_THAT(error.message(), HasSubstr("for the required 4 shards, got 2"));
    EXPECT_THAT(error.message(), HasSubstr("a shard of Dataset::shard() may be empty"));
    EXPECT_FALSE(iterator.try_next().has_value());
  }
}

TEST_P(ShardOfTooFew, IsSilentlyEmptyWhereItHasNoElement) {
  EXPECT_THAT(scalars_of(shard(2, 4, 2)), ElementsAre());
  EXPECT_THAT(scalars_of(shard(2, 4, 3)), ElementsAre());
  EXPECT_THAT(scalars_of(shard(0, 4, 0)), ElementsAre());
}

TEST_P(ShardOfTooFew, IsAnyShardWhereThereAreEnough) {
  for (std::int64_t elements = 3; elements < 9; ++elements) {
    for (std::int64_t index = 0; index < 3; ++index) {
      EXPECT_EQ(scalars_of(shard(elements, 3, index)), scalars_of(rows(elements).shard(3, index)));
    }
  }
}

// look_ahead() skips an element of another shard, whose error is thrown by the next call.
TEST(Shard, ReportsAnErrorFoundWhileLookingAhead) {
  const Dataset dataset(sharded(failing_at(1, 6).node(), 3, 0));
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "error data_loss", "3"));
}

TEST(Shard, RefusesNumbersThatAreNoShard) {
  EXPECT_THAT(error_of([] { rows(3).shard(0, 0); }).message(),
              HasSubstr("[data.shard] expected num_shards > 0, got 0"));
  EXPECT_THAT(error_of([] { rows(3).shard(2, 2); }).message(),
              HasSubstr("[data.shard] expected 0 <= index < num_shards = 2, got 2"));
  EXPECT_EQ(error_of([] { rows(3).shard(2, -1); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
