// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include <atomic>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/data/sharding/graph_edit.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

struct Parts {
  std::int64_t batch_size = 0;
  std::int64_t parts = 1;
  std::int64_t num_shards = 1;
  std::int64_t index = 0;
  bool drop_remainder = false;
};

Dataset shard_by_index(const Dataset& input, Parts of) {
  return Dataset(make_node("shard_by_index", {input.node()},
                           {{"batch_size", of.batch_size},
                            {"drop_remainder", of.drop_remainder},
                            {"parts", of.parts},
                            {"num_shards", of.num_shards},
                            {"index", of.index}}));
}

// rebatch_split(parts) and shard() over batch(), element by element.
std::vector<std::string> naive(std::int64_t count, Parts of) {
  std::vector<std::string> all;
  for (std::int64_t first = 0; first < count; first += of.batch_size) {
    const std::int64_t length = std::min(of.batch_size, count - first);
    if (of.drop_remainder && length < of.batch_size) break;
    const std::int64_t step = (length + of.parts - 1) / of.parts;
    for (std::int64_t part = 0; part < of.parts; ++part) {
      std::string text;
      for (std::int64_t i = part * step; i < std::min((part + 1) * step, length); ++i) {
        text += (text.empty() ? "" : ", ") + std::to_string(first + i);
      }
      all.push_back("[" + text + "]");
    }
  }
  std::vector<std::string> ours;
  for (std::size_t i = of.index; i < all.size(); i += of.num_shards) ours.push_back(all[i]);
  return ours;
}

INSTANTIATE_TEST_SUITE_P(
    ShardByIndex, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Elements",
                      [] { return shard_by_index(tensors(7), {.num_shards = 3, .index = 1}); }},
        DatasetOpCase{"Batches",
                      [] {
                        return shard_by_index(rows(11),
                                              {.batch_size = 2, .num_shards = 2, .index = 1});
                      }},
        DatasetOpCase{"Parts",
                      [] {
                        return shard_by_index(
                            tensors(11).map([](at::Tensor x) { return at::mul(x, 2); }),
                            {.batch_size = 4, .parts = 3, .num_shards = 2});
                      }},
        DatasetOpCase{"Shuffled", [] {
                        return shard_by_index(
                            rows(9).shuffle(4, {.seed = 3, .reshuffle_each_iteration = false}),
                            {.batch_size = 4, .parts = 2, .num_shards = 2});
                      }}));

TEST(ShardByIndex, MakesThisWorkersMiniBatchesAlone) {
  EXPECT_THAT(elements_of(shard_by_index(rows(8), {.batch_size = 4, .parts = 3, .num_shards = 3})),
              ElementsAre("[0, 1]", "[4, 5]"));
  EXPECT_THAT(elements_of(shard_by_index(
                  rows(8), {.batch_size = 4, .parts = 3, .num_shards = 3, .index = 2})),
              ElementsAre("[]", "[]"));
}

TEST(ShardByIndex, SplitsAShortLastBatchAnew) {
  EXPECT_THAT(elements_of(shard_by_index(rows(6), {.batch_size = 4, .parts = 2, .num_shards = 2})),
              ElementsAre("[0, 1]", "[4]"));
  EXPECT_THAT(elements_of(shard_by_index(
                  rows(6), {.batch_size = 4, .parts = 2, .num_shards = 2, .drop_remainder = true})),
              ElementsAre("[0, 1]"));
}

TEST(ShardByIndex, DoesNotEndWhereTheInputDoesNot) {
  EXPECT_THAT(elements_of(shard_by_index(rows(3).repeat(), {.batch_size = 2, .num_shards = 2}), 3),
              ElementsAre("[0, 1]", "[1, 2]", "[2, 0]"));
}

TEST(ShardByIndex, EndsNoBatchForItsUnevenElements) {
  const Dataset growing =
      rows(4).map([](at::Tensor x) { return at::ones({x.item<std::int64_t>()}); });
  EXPECT_THAT(
      elements_of(shard_by_index(growing, {.batch_size = 2}).batch(3, {.drop_remainder = true})),
      ElementsAre("error invalid_argument", "error invalid_argument"));
}

TEST(ShardByIndex, CallsAMapForItsOwnElementsAlone) {
  auto called = std::make_shared<std::vector<std::int64_t>>();
  const Dataset mapped = rows(6).map(
      [called](at::Tensor x) {
        called->push_back(x.item<std::int64_t>());
        return x;
      },
      {.output_spec = rows(6).element_spec()});
  elements_of(shard_by_index(mapped, {.batch_size = 4, .parts = 2, .num_shards = 2, .index = 1}));
  EXPECT_THAT(*called, ElementsAre(2, 3, 5));
}

TEST(ShardByIndex, NamesAnElementByItsNumberInTheDataset) {
  const Dataset failing = rows(6).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 5, ErrorCode::data_loss, "five");
    return x;
  });
  Iterator iterator =
      shard_by_index(failing, {.batch_size = 2, .parts = 2, .num_shards = 2, .index = 1})
          .iterator();
  iterator.try_next();
  iterator.try_next();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).what(), ::testing::HasSubstr("element 5"));
}

TEST(ShardByIndex, CallsAParallelMapForItsOwnElementsAlone) {
  auto calls = std::make_shared<std::atomic<int>>(0);
  const Dataset mapped = rows(90).map(
      [calls](at::Tensor x) {
        ++*calls;
        return x;
      },
      {.num_parallel_calls = 2, .output_spec = rows(1).element_spec()});
  const Parts parts{.batch_size = 6, .parts = 3, .num_shards = 3, .index = 1};
  EXPECT_THAT(elements_of(shard_by_index(mapped, parts)), ElementsAreArray(naive(90, parts)));
  EXPECT_EQ(*calls, 30);
}

TEST(ShardByIndex, LetsAnErrorTakeTheMiniBatchsPlace) {
  const Dataset failing = rows(6).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 1, ErrorCode::data_loss, "one");
    return x;
  });
  EXPECT_THAT(elements_of(shard_by_index(failing, {.batch_size = 2, .num_shards = 2})),
              ElementsAre("error data_loss", "[4, 5]"));
  EXPECT_THAT(elements_of(shard_by_index(failing, {.batch_size = 2, .num_shards = 2, .index = 1})),
              ElementsAre("[2, 3]"));
}

TEST(ShardByIndex, KnowsItsSpec) {
  const Parts even{.batch_size = 4, .parts = 2, .drop_remainder = true};
  EXPECT_EQ(shard_by_index(rows(8), even).element_spec().to_string(), "int64[2]");
  EXPECT_EQ(shard_by_index(rows(8), {.batch_size = 4, .parts = 2}).element_spec().to_string(),
            "int64[?]");
}

class ShardOfAll : public ::testing::TestWithParam<Parts> {};

TEST_P(ShardOfAll, IsThatOfTheThreeOps) {
  for (std::int64_t count = 0; count < 12; ++count) {
    EXPECT_THAT(elements_of(shard_by_index(rows(count), GetParam())),
                ElementsAreArray(naive(count, GetParam())))
        << "of " << count;
    EXPECT_THAT(elements_of(shard_by_index(tensors(count), GetParam())),
                ElementsAreArray(naive(count, GetParam())))
        << "of " << count;
    // Rebatching has unknown cardinality, and shard_by_index reports the same as the ops that it
    // replaces.
    const auto size = static_cast<std::int64_t>(naive(count, GetParam()).size());
    EXPECT_EQ(shard_by_index(rows(count), GetParam()).cardinality(),
              GetParam().parts > 1 ? kUnknownCardinality : size);
  }
}

std::vector<Parts> all_parts() {
  std::vector<Parts> all;
  for (std::int64_t batch_size = 1; batch_size <= 5; ++batch_size) {
    for (std::int64_t parts = 1; parts <= 4; ++parts) {
      for (std::int64_t num_shards = 1; num_shards <= 3; ++num_shards) {
        for (std::int64_t index = 0; index < num_shards; ++index) {
          all.push_back({batch_size, parts, num_shards, index, (batch_size + parts) % 2 == 0});
        }
      }
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(ShardByIndex, ShardOfAll, ::testing::ValuesIn(all_parts()));

}  // namespace
}  // namespace cohort::data
