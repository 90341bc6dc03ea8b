// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/core/log.h"
#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(
    Skip, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(9).skip(4); }},
        DatasetOpCase{"Tensors", [] { return tensors(9).skip(4); }},
        DatasetOpCase{.name = "More", .make = [] { return tensors(3).skip(5); }, .is_empty = true},
        DatasetOpCase{"Nothing", [] { return tensors(3).skip(0); }},
        DatasetOpCase{.name = "All", .make = [] { return rows(3).skip(-1); }, .is_empty = true},
        DatasetOpCase{"Batched", [] { return tensors(9).skip(2).batch(3); }}));

class SkipOfBothKinds : public ::testing::TestWithParam<bool> {
 protected:
  static Dataset numbers(std::int64_t count) { return GetParam() ? rows(count) : tensors(count); }
};
INSTANTIATE_TEST_SUITE_P(Skip, SkipOfBothKinds, ::testing::Bool());

TEST_P(SkipOfBothKinds, YieldsWhatFollows) {
  EXPECT_THAT(scalars_of(numbers(5).skip(3)), ElementsAre(3, 4));
  EXPECT_THAT(scalars_of(numbers(3).skip(3)), ElementsAre());
  EXPECT_THAT(scalars_of(numbers(3).skip(7)), ElementsAre());
  EXPECT_THAT(scalars_of(numbers(3).skip(-5)), ElementsAre());
  EXPECT_THAT(elements_of(numbers(5).skip(2).batch(2)), ElementsAre("[2, 3]", "[4]"));
}

TEST_P(SkipOfBothKinds, IsTheOtherPartOfTake) {
  EXPECT_THAT(scalars_of(numbers(9).skip(2).take(3).shard(2, 0)), ElementsAre(2, 4));
}

TEST(Skip, CountsItsElements) {
  EXPECT_EQ(rows(5).skip(2).cardinality(), 3);
  EXPECT_EQ(rows(5).skip(8).cardinality(), 0);
  EXPECT_EQ(rows(5).skip(-1).cardinality(), 0);
  EXPECT_EQ(rows(5).repeat().skip(2).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(rows(5).ignore_errors().skip(2).cardinality(), kUnknownCardinality);
}

TEST(Skip, DoesNotReadAnEndlessInputToItsEnd) {
  EXPECT_THAT(scalars_of(rows(5).repeat().skip(-1)), ElementsAre());
}

TEST(Skip, ReportsAnErrorInWhatItPassesOver) {
  EXPECT_THAT(elements_of(failing_at(1, 5).skip(3)), ElementsAre("error data_loss", "3", "4"));
}

class SkipWarning : public ::testing::Test {
 protected:
  SkipWarning() {
    set_log_sink([this](LogLevel, std::string_view line) { lines_.emplace_back(line); });
  }
  ~SkipWarning() override { set_log_sink(nullptr); }

  // Makes pipelines that no other test makes, since each is warned of once.
  static Dataset shuffled(const ShuffleOptions& options) {
    return rows(9).enumerate(3).shuffle(9, options);
  }

  std::vector<std::string> lines_;
};

// Rows of the validation set got into training without a word.
TEST_F(SkipWarning, IsLoggedOnceForAShuffleThatReshuffles) {
  const Dataset all = shuffled({.seed = 1});
  all.take(3);
  all.batch(2).skip(3);
  shuffled({.seed = 1}).batch(2).skip(3);
  shuffled({.reshuffle_each_iteration = false}).prefetch(2).skip(3);
  ASSERT_EQ(lines_.size(), 2U);
  EXPECT_THAT(lines_[0], ::testing::HasSubstr("got a shuffle() that gives each pass"));
  EXPECT_THAT(lines_[0], ::testing::HasSubstr(".reshuffle_each_iteration = false}"));
}

TEST_F(SkipWarning, IsNotLoggedWhereTheOrderStays) {
  shuffled({.seed = 1, .reshuffle_each_iteration = false}).skip(3).shuffle(6);
  shuffled({.seed = 1}).cache().skip(3);
  shuffled({.seed = 1}).repeat().skip(3);
  shuffled({.seed = 1}).skip(0);
  shuffled({.seed = 1}).take(3);
  EXPECT_TRUE(lines_.empty());
}

}  // namespace
}  // namespace cohort::data
