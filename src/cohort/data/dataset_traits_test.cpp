// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/dataset_traits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/core/string_tensor.h"
#include "cohort/data/field_function.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {
namespace {

at::Tensor unchanged(at::Tensor x) { return x; }

TEST(ElementOrder, IsTheSameWithoutParallelCalls) {
  const Dataset data =
      Dataset::range(9).map(unchanged, {.deterministic = false}).shuffle(4).batch(2);
  EXPECT_EQ(why_order_may_change(data), "");
}

TEST(ElementOrder, ParallelCallsKeepItByDefault) {
  EXPECT_EQ(why_order_may_change(Dataset::range(9).map(unchanged, {.num_parallel_calls = 2})), "");
}

TEST(ElementOrder, NamesTheOpThatMayChangeIt) {
  const MapOptions options{.num_parallel_calls = 2, .deterministic = false};
  EXPECT_EQ(why_order_may_change(Dataset::range(9).map(unchanged, options).batch(2)),
            "'map' with parallel calls and deterministic = false");
}

// Once an epoch continued in another order after a worker was lost.
TEST(ElementOrder, NamesAFunctionOfAField) {
  const Dataset words = Dataset::from_tensor_slices(StringTensor({2}, {"a", "b"}));
  const MapOptions options{.num_parallel_calls = 2, .deterministic = false};
  EXPECT_EQ(why_order_may_change(words.map(lower({}), options)),
            "'map_field' with parallel calls and deterministic = false");
}

// The attributes of a map contain programs, so reading them would trace its function.
TEST(ElementOrder, IsFoundWithoutRunningAFunction) {
  int calls = 0;
  const Dataset data = Dataset::range(9).map(
      [&calls](const at::Tensor& x) {
        ++calls;
        return x;
      },
      {.num_parallel_calls = 2, .deterministic = false});
  EXPECT_NE(why_order_may_change(data), "");
  EXPECT_EQ(calls, 0);
}

TEST(ElementOrder, ObeysTheOptionOfTheDataset) {
  DatasetOptions options;
  options.deterministic = false;
  const Dataset data = Dataset::range(9).batch(2, {.num_parallel_calls = 2}).with_options(options);
  EXPECT_EQ(why_order_may_change(data),
            "'parallel_batch' with parallel calls and deterministic = false");
}

TEST(ElementOrder, LooksIntoTheDatasetsThatAnOpMakes) {
  const auto part_of = [](const MapOptions& options) {
    return [options](at::Tensor x) {
      return Dataset::from_tensor_slices(x.expand({3})).map(unchanged, options);
    };
  };
  const Dataset numbers = Dataset::range(4);
  const MapOptions in_any_order{.num_parallel_calls = 2, .deterministic = false};
  EXPECT_EQ(why_order_may_change(numbers.interleave(part_of({}))), "");
  EXPECT_EQ(why_order_may_change(numbers.flat_map(part_of({.num_parallel_calls = 2}))), "");
  EXPECT_THAT(why_order_may_change(numbers.interleave(part_of(in_any_order))),
              ::testing::HasSubstr("'map' with parallel calls"));
  EXPECT_THAT(why_order_may_change(numbers.flat_map(part_of(in_any_order)).batch(2)),
              ::testing::HasSubstr("'map' with parallel calls"));
  // Both ops make graphs of their own, whose memory may be that of the other's.
  EXPECT_NE(why_order_may_change(
                numbers.flat_map(part_of({})).concatenate(numbers.flat_map(part_of(in_any_order)))),
            "");
  EXPECT_NE(why_order_may_change(Dataset::zip(
                {numbers.interleave(part_of({})), numbers.interleave(part_of(in_any_order))})),
            "");
  // Only the workers have the file, so nothing is known here.
  const Dataset lines = Dataset::text_line(StringTensor("missing"));
  EXPECT_EQ(why_order_may_change(lines.flat_map(
                [](at::Tensor line) { return Dataset::from_tensors(line).map(unchanged); })),
            "");
}

// Another host read as many files in turn as it had processors, so in another order.
TEST(ElementOrder, TheNumberOfFilesInTurnTravelsWithTheGraph) {
  const Dataset lines = Dataset::text_line(StringTensor("file"), {.num_parallel_reads = kAutotune});
  EXPECT_GE(lines.node()->attributes().at("num_parallel_reads").integer(), 1);
}

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

TEST(GuessesSizes, HoldsForFunctionsWithoutASpec) {
  const Dataset range = Dataset::range(8);
  const auto same = [](at::Tensor x) { return x; };
  const MapOptions given{.output_spec = ElementSpec::tuple({{at::kLong, {{}}}})};
  EXPECT_FALSE(guesses_sizes(range.batch(3).prefetch(1)));
  EXPECT_TRUE(guesses_sizes(range.map(same)));
  EXPECT_TRUE(guesses_sizes(Dataset::zip({range, range.map(same).take(4)})));
  EXPECT_FALSE(guesses_sizes(range.map(same, given)));
  EXPECT_FALSE(guesses_sizes(range.map([](std::int64_t x) { return x; })))
      << "numbers have no size";
}

TEST(GuessesSizes, EndsAtABatchThatSetsItsNumberOfRows) {
  const Dataset mapped = Dataset::range(8).map([](at::Tensor x) { return x; });
  EXPECT_FALSE(guesses_sizes(mapped.batch(2, {.drop_remainder = true})));
  EXPECT_TRUE(guesses_sizes(mapped.batch(2)));
  EXPECT_TRUE(
      guesses_sizes(mapped.batch(2, {.drop_remainder = true}).map([](at::Tensor x) { return x; })));
}

}  // namespace
}  // namespace cohort::data
