// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rows were copied from memory, which has the numbers before neg().
TEST(FromTensorSlices, TakesTheValuesOfALazilyNegatedTensor) {
  const at::Tensor lazy = at::arange(3)._neg_view();
  ASSERT_TRUE(lazy.is_neg());
  EXPECT_THAT(elements_of(Dataset::from_tensor_slices(lazy)), ElementsAre("0", "-1", "-2"));
  EXPECT_THAT(elements_of(Dataset::from_tensors(lazy)), ElementsAre("[0, -1, -2]"));
}

at::Tensor numbers(std::int64_t rows, std::int64_t columns) {
  return at::arange(rows * columns).view({rows, columns});
}

Dataset nested(std::int64_t rows) {
  return Dataset::from_tensor_slices(
      Nest::map({{"x", numbers(rows, 2)},
                 {"more", Nest::list({at::arange(rows), at::ones({rows, 1, 2}, at::kFloat)})}}));
}

// Elements of a number, a string, a vector of two strings, and a number.
Dataset named(std::int64_t rows) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < 3 * rows; ++i) names.push_back("n" + std::to_string(i));
  const StringTensor all(names);
  return Dataset::from_tensor_slices(
      Nest::tuple({at::arange(rows), all.slice(0, rows),
                   all.slice(rows, 3 * rows).reshaped({rows, 2}), at::arange(rows) + 7}));
}

INSTANTIATE_TEST_SUITE_P(
    FromTensorSlices, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"One", [] { return Dataset::from_tensor_slices(numbers(4, 3)); }},
        DatasetOpCase{"Nested", [] { return nested(3); }},
        DatasetOpCase{.name = "Empty",
                      .make = [] { return Dataset::from_tensor_slices(numbers(0, 3)); },
                      .is_empty = true},
        DatasetOpCase{"EmptyRows", [] { return Dataset::from_tensor_slices(numbers(3, 0)); }},
        DatasetOpCase{"Strings", [] { return named(4).skip(1).batch(2); }},
        DatasetOpCase{"Batches", [] { return nested(5).batch(2); }}));

TEST(FromTensorSlices, YieldsRows) {
  EXPECT_THAT(elements_of(Dataset::from_tensor_slices(numbers(2, 3))),
              ElementsAre("[0, 1, 2]", "[3, 4, 5]"));
}

TEST(FromTensorSlices, KeepsTheNest) {
  EXPECT_EQ(elements_of(nested(1))[0], "{more: (0, [[1, 1]]), x: [0, 1]}");
  EXPECT_EQ(nested(1).element_spec().to_string(), "{more: [int64[], float32[1, 2]], x: int64[2]}");
}

TEST(FromTensorSlices, YieldsStrings) {
  EXPECT_THAT(elements_of(named(2)),
              ElementsAre("(0, 'n0', ['n2', 'n3'], 7)", "(1, 'n1', ['n4', 'n5'], 8)"));
  EXPECT_EQ(named(2).element_spec().to_string(), "(int64[], string[], string[2], int64[])");
  EXPECT_THAT(elements_of(named(3).skip(1).batch(5)),
              ElementsAre("([1, 2], ['n1', 'n2'], [['n5', 'n6'], ['n7', 'n8']], [8, 9])"));
}

TEST(FromTensorSlices, TakesTensorsThatAreNotContiguous) {
  EXPECT_THAT(elements_of(Dataset::from_tensor_slices(numbers(2, 2).t())),
              ElementsAre("[0, 2]", "[1, 3]"));
}

TEST(FromTensorSlices, GivesElementsOfTheirOwn) {
  const at::Tensor given = numbers(2, 2);
  const Dataset dataset = Dataset::from_tensor_slices(given);
  for (Nest& element : dataset) element.tensor().zero_();
  EXPECT_EQ(show(given), "[[0, 1], [2, 3]]");
}

TEST(FromTensorSlices, GathersRowsInAnyOrder) {
  const Dataset dataset =
      Dataset::from_tensor_slices(numbers(6, 2)).shuffle(6, {.seed = 1}).batch(6);
  for (const Nest& batch : dataset) {
    const auto* values = batch.tensor().data_ptr<std::int64_t>();
    for (int row = 0; row < 6; ++row) EXPECT_EQ(values[2 * row + 1], values[2 * row] + 1);
  }
}

TEST(FromTensorSlices, RefusesScalars) {
  const Error error = error_of([] { Dataset::from_tensor_slices(at::ones({})); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(),
              HasSubstr("expected tensors of at least one dimension, got float32[] for field 0"));
}

TEST(FromTensorSlices, RefusesUnequalRowCounts) {
  const Error error = error_of([] {
    Dataset::from_tensor_slices(Nest::tuple({at::ones({3}), at::ones({2, 5})}));
  });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("expected 3 rows in every tensor, as in field 0, got float32[2, 5] for field 1"));
}

TEST(FromTensorSlices, RefusesAnEmptyNest) {
  EXPECT_EQ(error_of([] { Dataset::from_tensor_slices(Nest::tuple({})); }).code(),
            ErrorCode::invalid_argument);
}

TEST(FromTensorSlices, RefusesWhatIsNoTensor) {
  const Error error = error_of([] {
    Dataset::from_tensor_slices(Nest::tuple({at::ones({3}), 7}));
  });
  EXPECT_THAT(error.message(), HasSubstr("got int for field 1"));
}

TEST(FromTensorSlices, RefusesSparseTensors) {
  const Error error = error_of([] { Dataset::from_tensor_slices(at::ones({2, 2}).to_sparse()); });
  EXPECT_THAT(error.message(), HasSubstr("sparse and ragged fields are not supported yet"));
}

}  // namespace
}  // namespace cohort::data
