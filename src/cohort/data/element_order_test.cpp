// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element_order.h"

#include <gtest/gtest.h>

namespace cohort::data {
namespace {

at::Tensor same(at::Tensor x) { return x; }

TEST(ElementOrder, IsTheSameWithoutParallelCalls) {
  const Dataset data = Dataset::range(9).map(same, {.deterministic = false}).shuffle(4).batch(2);
  EXPECT_EQ(why_order_may_change(data), "");
}

TEST(ElementOrder, ParallelCallsKeepItByDefault) {
  EXPECT_EQ(why_order_may_change(Dataset::range(9).map(same, {.num_parallel_calls = 2})), "");
}

TEST(ElementOrder, NamesTheOpThatMayChangeIt) {
  const MapOptions options{.num_parallel_calls = 2, .deterministic = false};
  EXPECT_EQ(why_order_may_change(Dataset::range(9).map(same, options).batch(2)),
            "'map' with parallel calls and deterministic = false");
}

TEST(ElementOrder, ObeysTheOptionOfTheDataset) {
  DatasetOptions options;
  options.deterministic = false;
  const Dataset data = Dataset::range(9).batch(2, {.num_parallel_calls = 2}).with_options(options);
  EXPECT_EQ(why_order_may_change(data),
            "'parallel_batch' with parallel calls and deterministic = false");
}

}  // namespace
}  // namespace cohort::data
