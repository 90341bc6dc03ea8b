// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/auto_shard.h"

#include <gmock/gmock.h>

#include "cohort/data/dataset_traits.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Dataset with_policy(const Dataset& dataset, AutoShardPolicy policy) {
  DatasetOptions options;
  options.auto_shard_policy = policy;
  return dataset.with_options(options);
}

std::vector<std::int64_t> shard_of(const Dataset& dataset, std::int64_t workers,
                                   std::int64_t index) {
  return scalars_of(auto_shard(dataset, {.num_workers = workers, .index = index}));
}

ErrorCode code_of(const Dataset& dataset, const AutoShardOptions& options) {
  return error_of([&] { auto_shard(dataset, options); }).code();
}

TEST(AutoShard, DealsElementsOutWhereThereAreNoFiles) {
  EXPECT_THAT(shard_of(rows(10), 5, 2), ElementsAre(2, 7));
  EXPECT_THAT(shard_of(rows(10), 4, 3), ElementsAre(3, 7));
  EXPECT_THAT(shard_of(tensors(10), 4, 3), ElementsAre(3, 7));
  EXPECT_THAT(shard_of(rows(1), 5, 2), IsEmpty());
}

TEST(AutoShard, HasExactlyEnoughForEveryWorker) {
  const Dataset dataset = with_policy(rows(10), AutoShardPolicy::data);
  EXPECT_THAT(shard_of(dataset, 10, 9), ElementsAre(9));
  EXPECT_THAT(shard_of(dataset, 10, 0), ElementsAre(0));
}

TEST(AutoShard, RefusesBadArguments) {
  const auto bad = ErrorCode::invalid_argument;
  EXPECT_EQ(code_of(rows(10), {.num_workers = 5, .index = 7}), bad);
  EXPECT_EQ(code_of(rows(10), {.num_workers = 5, .index = -3}), bad);
  EXPECT_EQ(code_of(rows(10), {.num_workers = -3, .index = 1}), bad);
  EXPECT_EQ(code_of(rows(10), {.num_workers = 0, .index = 1}), bad);
  EXPECT_EQ(code_of(rows(10), {.num_replicas = -1}), bad);
  EXPECT_EQ(code_of(rows(10), {.policy = AutoShardPolicy(7)}), bad);
}

TEST(AutoShard, FindsNoFilesInARange) {
  const AutoShardOptions file{.num_workers = 10, .policy = AutoShardPolicy::file};
  EXPECT_EQ(code_of(rows(1024), file), ErrorCode::not_found);
  const Error error = error_of([&] { auto_shard(rows(1024), file); });
  EXPECT_THAT(error.message(), HasSubstr("'range'"));
}

// Spec 3.6. Once the new graph's spec ignored that the user's rebatch drops short batches.
TEST(AutoShard, KeepsTheSpecOfARebatchThatItChanges) {
  const auto dealt = [](std::int64_t count) {
    const Dataset dropping = rows(count).batch(4).rebatch({2, 2}, {.drop_remainder = true});
    EXPECT_EQ(dropping.element_spec().to_string(), "int64[2]");
    return auto_shard(dropping, {.num_workers = 2, .index = 1, .num_replicas = 2});
  };
  EXPECT_EQ(dealt(8).element_spec().to_string(), "int64[2]");
  EXPECT_THAT(elements_of(dealt(8)), ElementsAre("[2, 3]", "[6, 7]"));
  EXPECT_THAT(elements_of(dealt(6)), ElementsAre("[2, 3]", "[5]"));
  EXPECT_FALSE(cannot_fail(dealt(6).batch(2)));
}

TEST(AutoShard, LeavesOneWorkerWhatItHas) {
  EXPECT_EQ(auto_shard(rows(4), {.policy = AutoShardPolicy::file}).cardinality(), 4);
  EXPECT_THAT(shard_of(rows(4), 1, 0), ElementsAre(0, 1, 2, 3));
}

TEST(AutoShard, ReadsEverythingWhereItIsOff) {
  EXPECT_THAT(shard_of(with_policy(rows(3), AutoShardPolicy::off), 2, 1), ElementsAre(0, 1, 2));
}

TEST(AutoShard, KeepsWhatWasSetBeforeADefault) {
  const Dataset dataset =
      with_policy(with_policy(rows(4), AutoShardPolicy::off), AutoShardPolicy::automatic);
  EXPECT_THAT(shard_of(dataset, 2, 1), ElementsAre(0, 1, 2, 3));
}

TEST(ShardDecision, SaysWhatFileCouldNotPass) {
  const ShardDecision decision = shard_decision(rows(10).batch(2), {.num_workers = 2});
  EXPECT_EQ(decision.asked, AutoShardPolicy::automatic);
  EXPECT_EQ(decision.taken, AutoShardPolicy::data);
  EXPECT_EQ(decision.refused_by, "range");
  EXPECT_TRUE(decision.is_by_index);
  EXPECT_EQ(decision.warnings.size(), 1u);
}

TEST(ShardDecision, DoesNotWarnOneWorker) {
  EXPECT_THAT(shard_decision(rows(10), {}).warnings, IsEmpty());
}

TEST(AutoShard, DoesNotCallAMapForOthersElements) {
  auto calls = std::make_shared<int>(0);
  const Dataset mapped = rows(10).map(
      [calls](at::Tensor x) {
        ++*calls;
        return x;
      },
      {.output_spec = rows(10).element_spec()});
  EXPECT_THAT(shard_of(mapped, 5, 2), ElementsAre(2, 7));
  EXPECT_EQ(*calls, 2);
}

}  // namespace
}  // namespace cohort::data
