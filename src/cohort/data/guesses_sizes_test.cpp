// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/guesses_sizes.h"

#include <gtest/gtest.h>

namespace cohort::data {
namespace {

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
