// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element_order.h"

#include <gtest/gtest.h>

#include "cohort/data/field_function.h"

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

}  // namespace
}  // namespace cohort::data
