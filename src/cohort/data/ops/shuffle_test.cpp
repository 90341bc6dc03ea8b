// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/sharding/graph_edit.h"
#include "cohort/data/stages/stage.h"
#include "cohort/testing/test_seed.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::vector<std::int64_t>;
using MakeNumbers = Dataset (*)(std::int64_t);

constexpr ShuffleOptions kSteady{.seed = 5, .reshuffle_each_iteration = false};

INSTANTIATE_TEST_SUITE_P(
    Shuffle, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(20).shuffle(6, kSteady); }},
        DatasetOpCase{"Tensors", [] { return tensors(20).shuffle(6, kSteady); }},
        DatasetOpCase{"Whole", [] { return rows(9).shuffle(kUnknownCardinality, kSteady); }},
        DatasetOpCase{
            "OfBatches",
            [] { return rows(20).batch(3, {.drop_remainder = true}).shuffle(4, kSteady); }},
        DatasetOpCase{.name = "Empty",
                      .make = [] { return tensors(0).shuffle(4, kSteady); },
                      .is_empty = true}));

Values sorted_values(Values values) {
  std::sort(values.begin(), values.end());
  return values;
}

Values first_numbers(std::int64_t count) {
  Values values(static_cast<std::size_t>(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

class Shuffle : public ::testing::TestWithParam<MakeNumbers> {
 protected:
  static Dataset numbers(std::int64_t count) { return GetParam()(count); }
};
INSTANTIATE_TEST_SUITE_P(BothKinds, Shuffle, ::testing::Values(&rows, &tensors));

TEST_P(Shuffle, IsAPermutationWithinItsWindow) {
  const testing::TestSeed test_seed;
  std::mt19937 random(test_seed.value());
  for (int round = 0; round < 40; ++round) {
    const std::int64_t count = random() % 60;
    const std::int64_t buffer = 1 + random() % 70;
    const Values order = scalars_of(numbers(count).shuffle(buffer, {.seed = random()}));
    EXPECT_EQ(sorted_values(order), first_numbers(count)) << "buffer " << buffer;
    for (std::size_t p = 0; p < order.size(); ++p) {
      EXPECT_LT(order[p], static_cast<std::int64_t>(p) + buffer)
          << "position " << p << " of " << count;
    }
  }
}

TEST_P(Shuffle, WithABufferOfOneIsTheIdentity) {
  EXPECT_EQ(scalars_of(numbers(20).shuffle(1)), first_numbers(20));
}

TEST_P(Shuffle, IsTheSameForTwoPipelinesOfOneSeed) {
  const auto order = [](std::int64_t seed) {
    return scalars_of(numbers(50).shuffle(8, {.seed = seed}));
  };
  EXPECT_EQ(order(5), order(5));
  EXPECT_NE(order(5), order(6));
}

TEST_P(Shuffle, DiffersInEachIteration) {
  const Dataset dataset = numbers(100).shuffle(100, {.seed = 3});
  EXPECT_NE(scalars_of(dataset), scalars_of(dataset));
  const Dataset unseeded = numbers(100).shuffle(100);
  EXPECT_NE(scalars_of(unseeded), scalars_of(unseeded));
}

TEST_P(Shuffle, MayKeepItsOrder) {
  const Dataset seeded = numbers(30).shuffle(30, kSteady);
  EXPECT_EQ(scalars_of(seeded), scalars_of(seeded));
  const Dataset unseeded =
      numbers(30).shuffle(30, {.seed = std::nullopt, .reshuffle_each_iteration = false});
  EXPECT_EQ(scalars_of(unseeded), scalars_of(unseeded));
}

TEST_P(Shuffle, DrainsEachEpochOfARepeat) {
  const Values two = scalars_of(numbers(30).shuffle(7, {.seed = 3}).repeat(2));
  const Values first(two.begin(), two.begin() + 30);
  const Values second(two.begin() + 30, two.end());
  EXPECT_EQ(sorted_values(first), first_numbers(30));
  EXPECT_EQ(sorted_values(second), first_numbers(30));
  EXPECT_NE(first, second);
}

TEST_P(Shuffle, RepeatsAKeptOrder) {
  const Values two = scalars_of(numbers(10).shuffle(10, kSteady).repeat(2));
  EXPECT_EQ(Values(two.begin(), two.begin() + 10), Values(two.begin() + 10, two.end()));
}

TEST_P(Shuffle, FollowsTheRunsSeedWhereItHasNone) {
  const auto order = [](std::uint64_t run_seed) {
    Iterator iterator =
        numbers(50).shuffle(50).iterator({.seed = run_seed, .data_dirs = std::nullopt});
    return drain(iterator);
  };
  EXPECT_EQ(order(1), order(1));
  EXPECT_NE(order(1), order(2));
}

TEST_P(Shuffle, ContinuesInTheEpochsAfterItWasSaved) {
  const auto start = [](const Dataset& dataset) {
    return dataset.node()->start(StageContext({}, Purpose::run));
  };
  const Dataset dataset = numbers(10).shuffle(4, {.seed = 3}).repeat(4);
  scalars_of(dataset);  // so that the next run is not the first iteration
  const auto original = start(dataset);
  Fields fields;
  for (int i = 0; i < 13; ++i) ASSERT_TRUE(original->next(fields));
  ByteWriter writer;
  original->save(writer);
  const auto restored = start(numbers(10).shuffle(4, {.seed = 3}).repeat(4));
  ByteReader reader(writer.bytes(), "iterator position");
  restored->restore(reader);
  for (Fields expected; original->next(expected);) {
    ASSERT_TRUE(restored->next(fields));
    EXPECT_EQ(show(fields[0]), show(expected[0]));
  }
  EXPECT_FALSE(restored->next(fields));
}

// Rows and tensors of one input are shuffled alike, so that rewrites may change the kind of stage.
TEST(ShuffleOrder, DoesNotDependOnTheKindOfStage) {
  for (const std::int64_t buffer : {1, 3, 8, 40}) {
    EXPECT_EQ(scalars_of(rows(30).shuffle(buffer, kSteady)),
              scalars_of(tensors(30).shuffle(buffer, kSteady)));
    EXPECT_EQ(elements_of(rows(30).shuffle(buffer, kSteady).batch(30)),
              elements_of(tensors(30).shuffle(buffer, kSteady).batch(30)));
  }
}

TEST(ShuffleOrder, IsFairInTheFirstPlace) {
  std::vector<int> times(5);
  for (std::int64_t seed = 0; seed < 5000; ++seed) {
    ++times[static_cast<std::size_t>(scalars_of(rows(5).shuffle(5, {.seed = seed}), 1)[0])];
  }
  for (const int count : times) EXPECT_NEAR(count, 1000, 150);
}

TEST(ShuffleErrors, PassTheBuffer) {
  const Dataset failing = rows(6).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 3, ErrorCode::invalid_argument, "three");
    return x;
  });
  std::vector<std::string> items = elements_of(failing.shuffle(3, {.seed = 1}));
  std::sort(items.begin(), items.end());
  EXPECT_THAT(items, ElementsAre("0", "1", "2", "4", "5", "error invalid_argument"));
}

// The room reserved for the rows of a failed read once stayed in the buffer, as rows 0.
TEST(ShuffleErrors, LeaveNoRowsInTheBuffer) {
  EXPECT_THAT(elements_of(Dataset(sharded(rows(2).node(), 4, 1)).shuffle(3)),
              ElementsAre("error invalid_argument"));
}

TEST(ShuffleErrors, NameBufferSizesThatAreNone) {
  EXPECT_THAT(error_of([] { rows(3).shuffle(0); }).message(),
              HasSubstr("[data.shuffle] expected buffer_size > 0"));
  EXPECT_EQ(error_of([] { rows(3).shuffle(-1); }).code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error_of([] { rows(3).repeat().shuffle(kUnknownCardinality); }).message(),
              HasSubstr("shuffle() before repeat()"));
}

// A new process counted its passes from 0 again.
TEST(Shuffle, CountsItsPassesOnAfterARestore) {
  const auto make = [] { return rows(50).shuffle(50, {.seed = 1}); };
  const Dataset first = make();
  elements_of(first);
  elements_of(first);
  Iterator third = first.iterator();
  drain(third, 10);
  const Dataset again = make();
  Iterator restored = again.iterator();
  restored.restore(third.save());
  EXPECT_EQ(drain(restored), drain(third));
  EXPECT_EQ(elements_of(again), elements_of(first));
}

}  // namespace
}  // namespace cohort::data
