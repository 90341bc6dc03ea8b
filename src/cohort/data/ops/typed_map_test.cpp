// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/full.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"
#include "cohort/testing/throws_error.h"

namespace cohort::data {
namespace {

using ::cohort::testing::throws_error;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::int64_t add_one(std::int64_t x) { return x + 1; }
std::int64_t fail_at_two(std::int64_t x) {
  COHORT_CHECK(x != 2, ErrorCode::out_of_range, "two");
  return x;
}

INSTANTIATE_TEST_SUITE_P(
    TypedMap, DatasetOp,
    ::testing::Values(DatasetOpCase{"rows", [] { return rows(7).map(add_one); }, false},
                      DatasetOpCase{"batched", [] { return rows(7).map(add_one).batch(3); }, false},
                      DatasetOpCase{"tensors", [] { return tensors(5).map(add_one); }, false}));

TEST(TypedMap, RunsOverBatches) {
  EXPECT_THAT(elements_of(rows(5).map(add_one).batch(2)), ElementsAre("[1, 2]", "[3, 4]", "[5]"));
}

TEST(TypedMap, ConvertsToTheTypeOfItsResult) {
  const Dataset halves = rows(3).map([](std::int64_t x) { return static_cast<float>(x) / 2; });
  EXPECT_EQ(halves.element_spec().to_string(), "float32[]");
  EXPECT_THAT(elements_of(halves), ElementsAre("0", "0.5", "1"));
}

TEST(TypedMap, TakesAndGivesSeveralNumbers) {
  const Dataset pairs =
      rows(3).map([](std::int64_t x) { return std::make_tuple(x, static_cast<double>(10 - x)); });
  const Dataset swapped = pairs.map([](std::int64_t x, double y) { return std::make_pair(y, x); });
  EXPECT_THAT(elements_of(swapped), ElementsAre("(10, 0)", "(9, 1)", "(8, 2)"));
}

TEST(TypedMap, LosesOnlyTheElementThatThrows) {
  EXPECT_THAT(elements_of(rows(4).map(fail_at_two)),
              ElementsAre("0", "1", "error invalid_argument", "3"));
}

TEST(TypedMap, NamesTheElementThatThrows) {
  Iterator iterator = rows(9).map(fail_at_two).batch(4).iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).what(), HasSubstr("mapping element 2"));
  EXPECT_EQ(show(*iterator.try_next()), "[4, 5, 6, 7]");
}

TEST(TypedMap, RefusesElementsOfAnotherType) {
  EXPECT_THAT([] { rows(3).map([](float x) { return x; }); },
              throws_error(ErrorCode::invalid_argument, "parameter 0"));
  EXPECT_THAT([] { rows(4).batch(2).map(add_one); },
              throws_error(ErrorCode::invalid_argument, "int64[?]"));
}

// An element is not the pipeline's alone: its memory once took the result.
TEST(TypedMap, DoesNotWriteToATensorThatAFunctionKeeps) {
  const at::Tensor kept = at::full({}, 5, at::kLong);
  const Dataset dataset = rows(3).map([kept](at::Tensor) { return kept; }).map(add_one);
  EXPECT_THAT(elements_of(dataset), ElementsAre("6", "6", "6"));
  EXPECT_THAT(elements_of(dataset.batch(3)), ElementsAre("[6, 6, 6]"));
  EXPECT_EQ(kept.item<std::int64_t>(), 5);
}

TEST(TypedMap, DoesNotWriteToItsSource) {
  const at::Tensor column = rows(4).batch(4).iterator().next<at::Tensor>();
  const Dataset dataset = Dataset::from_tensor_slices(column).map(add_one);
  EXPECT_EQ(elements_of(dataset), elements_of(dataset));
}

}  // namespace
}  // namespace cohort::data
