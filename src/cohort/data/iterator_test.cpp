// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/iterator.h"

#include <ATen/TensorOperators.h>
#include <gmock/gmock.h>

#include "cohort/data/internal/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset squares() {
  return Dataset::range(7, {.start = 1}).map([](at::Tensor x) { return x * x; }).batch(2);
}

std::vector<std::string> read(Iterator& iterator, std::size_t count) {
  return drain(iterator, count);
}

TEST(IteratorPosition, IsGoneBackTo) {
  Iterator iterator = squares().iterator();
  EXPECT_THAT(read(iterator, 1), ElementsAre("[1, 4]"));
  const Bytes position = iterator.save();
  EXPECT_THAT(read(iterator, 2), ElementsAre("[9, 16]", "[25, 36]"));
  for (int i = 0; i < 2; ++i) {
    iterator.restore(position);
    EXPECT_THAT(drain(iterator), ElementsAre("[9, 16]", "[25, 36]"));
  }
}

TEST(IteratorPosition, MayBeTheEnd) {
  Iterator iterator = rows(3).iterator();
  drain(iterator);
  Iterator other = rows(3).iterator();
  other.restore(iterator.save());
  EXPECT_FALSE(other.try_next().has_value());
}

TEST(IteratorPosition, IsTakenUpByIteratorsOfTheSamePipeline) {
  const Dataset dataset = rows(10);
  Bytes position = dataset.iterator().save();
  std::vector<std::string> all;
  for (int loop = 0; loop < 5; ++loop) {
    Iterator iterator = rows(10).iterator();
    iterator.restore(position);
    for (const std::string& element : read(iterator, 2)) all.push_back(element);
    position = iterator.save();
  }
  EXPECT_THAT(all, ElementsAre("0", "1", "2", "3", "4", "5", "6", "7", "8", "9"));
}

TEST(IteratorPosition, IsExactInTheMiddleOfAShuffleAndAPrefetch) {
  const auto make = [] {
    return rows(40)
        .map([](at::Tensor x) { return x; })
        .prefetch(5)
        .shuffle(10, {.seed = 10, .reshuffle_each_iteration = false})
        .filter([](at::Tensor x) { return x % 3 != 0; })
        .enumerate()
        .batch(3)
        .unbatch();
  };
  const std::vector<std::string> whole = elements_of(make());
  for (std::size_t taken = 0; taken <= whole.size(); ++taken) {
    Iterator first = make().iterator();
    std::vector<std::string> all = read(first, taken);
    Iterator second = make().iterator();
    second.restore(first.save());
    for (const std::string& element : drain(second)) all.push_back(element);
    EXPECT_EQ(all, whole) << "after " << taken;
  }
}

TEST(IteratorPosition, IsRefusedByAnotherPipeline) {
  const Bytes position = rows(4).take(3).iterator().save();
  Iterator other = rows(4).skip(1).iterator();
  const Error error = error_of([&] { other.restore(position); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("expected a position in the pipeline 'range skip', got one in 'range take'"));
}

TEST(IteratorPosition, IsRefusedWhereTheElementsDiffer) {
  const Bytes position = rows(4).iterator().save();
  Iterator other = Dataset::range(4, {.dtype = at::kFloat}).iterator();
  EXPECT_THAT(error_of([&] { other.restore(position); }).message(),
              HasSubstr("in a dataset of float32[], got one of int64[]"));
}

TEST(IteratorPosition, IsDataLossWhereItsBytesAreCut) {
  Bytes position = rows(4).take(3).iterator().save();
  position.pop_back();
  Iterator iterator = rows(4).take(3).iterator();
  EXPECT_EQ(error_of([&] { iterator.restore(position); }).code(), ErrorCode::data_loss);
}

class IteratorStats : public ::testing::Test {
 protected:
  static Iterator measured(const Dataset& dataset) {
    return dataset.iterator({.collect_stats = true});
  }
  static std::vector<std::string> counts(const Iterator& iterator) {
    std::vector<std::string> all;
    for (const StageStats& stage : iterator.stats()) {
      all.push_back(stage.place + " " + stage.op + " " + std::to_string(stage.elements));
    }
    return all;
  }
};

TEST_F(IteratorStats, CountTheElementsOfEachOp) {
  Iterator iterator = measured(tensors(6).shuffle(3).batch(2).map([](at::Tensor x) { return x; }));
  drain(iterator);
  EXPECT_THAT(counts(iterator), ElementsAre("/ map 3", "/0 batch 3", "/0/0 shuffle 6",
                                            "/0/0/0 map 6", "/0/0/0/0 range 6"));
}

TEST_F(IteratorStats, CountRowsAndEpochs) {
  Iterator iterator = measured(rows(4).shard(2, 0).repeat(3).batch(4));
  EXPECT_THAT(drain(iterator), ElementsAre("[0, 2, 0, 2]", "[0, 2]"));
  EXPECT_THAT(counts(iterator),
              ElementsAre("/ batch 2", "/0 repeat 6", "/0/0 shard 6", "/0/0/0 range 12"));
}

TEST_F(IteratorStats, TellInputsApart) {
  Iterator iterator = measured(tensors(2).concatenate(rows(1)));
  drain(iterator);
  EXPECT_THAT(counts(iterator),
              ElementsAre("/ concatenate 3", "/0 map 2", "/0/0 range 2", "/1 range 1"));
}

TEST_F(IteratorStats, AreNoneWhereNotAsked) {
  Iterator iterator = rows(3).iterator();
  drain(iterator);
  EXPECT_TRUE(iterator.stats().empty());
  EXPECT_EQ(iterator.bottleneck(), "");
}

TEST_F(IteratorStats, KeepTimesOfTheirOwnApart) {
  Iterator iterator = measured(tensors(50).shuffle(9).batch(8));
  drain(iterator);
  double own = 0;
  const std::vector<StageStats> stats = iterator.stats();
  for (const StageStats& stage : stats) {
    EXPECT_GE(stage.seconds_exclusive, 0);
    EXPECT_GE(stage.seconds, stage.seconds_exclusive);
    own += stage.seconds_exclusive;
  }
  EXPECT_NEAR(own, stats[0].seconds, 1e-6);
}

// This stage spins, the others do almost nothing, and prefetch waits.
TEST_F(IteratorStats, NameTheStageThatTakesMost) {
  const auto busy = [](at::Tensor x) {
    volatile std::int64_t sum = 0;
    for (std::int64_t i = 0; i < 3'000'000; ++i) sum = sum + i;
    return x;
  };
  Iterator iterator = measured(rows(4).map(busy).prefetch(1).batch(2));
  drain(iterator);
  EXPECT_EQ(iterator.bottleneck(), "map at /0/0");
}

TEST_F(IteratorStats, AddTheWorkOfOtherThreads) {
  const auto busy = [](at::Tensor x) {
    volatile std::int64_t sum = 0;
    for (std::int64_t i = 0; i < 3'000'000; ++i) sum = sum + i;
    return x;
  };
  Iterator iterator = measured(rows(4).map(busy, {.num_parallel_calls = 2}).batch(2));
  drain(iterator);
  EXPECT_EQ(iterator.bottleneck(), "map at /0");
}

TEST_F(IteratorStats, LeaveElementsAndPositionsAlone) {
  const Dataset dataset =
      rows(9).shuffle(4, {.seed = 2, .reshuffle_each_iteration = false}).batch(2);
  Iterator watched = measured(dataset);
  EXPECT_EQ(drain(watched, 2), elements_of(dataset, 2));
  Iterator plain = dataset.iterator();
  plain.restore(watched.save());
  EXPECT_EQ(drain(plain), drain(watched));
}

}  // namespace
}  // namespace cohort::data
