// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

DatasetOptions sharded(AutoShardPolicy policy) {
  DatasetOptions options;
  options.auto_shard_policy = policy;
  return options;
}

DatasetOptions deterministic(bool value) {
  DatasetOptions options;
  options.deterministic = value;
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Options, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(5).with_options(deterministic(false)).batch(2); }},
        DatasetOpCase{"Tensors",
                      [] { return tensors(5).with_options(sharded(AutoShardPolicy::file)); }}));

TEST(Options, AreDefaultsWhereNothingIsSet) {
  EXPECT_EQ(rows(3).options(), DatasetOptions());
  EXPECT_EQ(rows(3).options().auto_shard_policy, AutoShardPolicy::automatic);
  EXPECT_FALSE(rows(3).options().deterministic.has_value());
}

TEST(Options, AreThoseOfEveryOpBehind) {
  const DatasetOptions options = deterministic(false);
  const Dataset dataset = rows(3).with_options(options);
  EXPECT_EQ(dataset.options(), options);
  EXPECT_EQ(dataset.shuffle(2).repeat(2).batch(2).options(), options);
  EXPECT_EQ(rows(3).options(), DatasetOptions());
}

TEST(Options, AddUp) {
  DatasetOptions tuned;
  tuned.autotune = true;
  const DatasetOptions both =
      rows(3).with_options(tuned).with_options(deterministic(false)).options();
  EXPECT_EQ(both.autotune, true);
  EXPECT_EQ(both.deterministic, false);
}

TEST(Options, OfAllInputsAreMerged) {
  DatasetOptions slack;
  slack.slack = true;
  const auto zip = [](const Dataset& a, const Dataset& b) {
    return Dataset::zip(std::vector<Dataset>{a, b}).options();
  };
  const DatasetOptions both =
      zip(rows(3).with_options(slack), rows(3).with_options(deterministic(true)));
  EXPECT_EQ(both.slack, true);
  EXPECT_EQ(both.deterministic, true);
  const Dataset by_file = rows(3).with_options(sharded(AutoShardPolicy::file));
  const Dataset by_data = rows(3).with_options(sharded(AutoShardPolicy::data));
  EXPECT_EQ(zip(by_data, by_file).auto_shard_policy, AutoShardPolicy::file);
  EXPECT_EQ(zip(by_file, rows(3)).auto_shard_policy, AutoShardPolicy::file);
  EXPECT_EQ(rows(1).concatenate(by_data).options().auto_shard_policy, AutoShardPolicy::data);
}

TEST(Options, AreNotUndoneByADefault) {
  const Dataset by_data = rows(3).with_options(sharded(AutoShardPolicy::data));
  EXPECT_EQ(by_data.with_options(sharded(AutoShardPolicy::automatic)).options().auto_shard_policy,
            AutoShardPolicy::data);
}

TEST(Options, TheLaterHoldWhereTheyDiffer) {
  const Dataset by_data = rows(3).with_options(sharded(AutoShardPolicy::data));
  EXPECT_EQ(by_data.with_options(sharded(AutoShardPolicy::file)).options().auto_shard_policy,
            AutoShardPolicy::file);
}

TEST(Options, SurviveAJourney) {
  DatasetOptions options = sharded(AutoShardPolicy::off);
  options.slack = true;
  options.apply_default_optimizations = false;
  options.private_threadpool_size = 80;
  options.external_state_policy = ExternalStatePolicy::fail;
  options.rebatch = RebatchMode::split;
  options.too_few_files = TooFewFiles::data;
  EXPECT_EQ(shipped(rows(3).with_options(options).batch(2)).options(), options);
}

TEST(Options, RefuseValuesThereAreNot) {
  DatasetOptions options;
  options.private_threadpool_size = -1;
  EXPECT_EQ(error_of([&] { rows(3).with_options(options); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { rows(3).with_options(sharded(static_cast<AutoShardPolicy>(9))); }).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
