// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset names(std::initializer_list<std::string> values) {
  return Dataset::from_tensor_slices(
      StringTensor({static_cast<std::int64_t>(values.size())}, values));
}

INSTANTIATE_TEST_SUITE_P(
    Concatenate, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(3).concatenate(rows(2)); }},
        DatasetOpCase{"Tensors", [] { return tensors(3).concatenate(tensors(2)); }},
        DatasetOpCase{"Mixed", [] { return rows(3).concatenate(tensors(2)).concatenate(rows(1)); }},
        DatasetOpCase{"Batched", [] { return rows(5).concatenate(rows(6)).batch(4); }},
        DatasetOpCase{"Strings",
                      [] {
                        return names({"a", "b", "c"}).concatenate(names({"d"})).batch(2);
                      }},
        DatasetOpCase{"Ranks", [] { return rows(2).concatenate(rows(4).batch(2)); }}));

TEST(Concatenate, YieldsOneAfterTheOther) {
  EXPECT_THAT(scalars_of(rows(2).concatenate(Dataset::range(4, {.start = 2}))),
              ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(scalars_of(rows(0).concatenate(rows(2)).concatenate(rows(0))), ElementsAre(0, 1));
}

TEST(Concatenate, FillsBatchesAcrossTheSeam) {
  const auto expected = ElementsAre("[0, 1, 2]", "[0, 1, 2]", "[3]");
  EXPECT_THAT(elements_of(rows(3).concatenate(rows(4)).batch(3)), expected);
  EXPECT_THAT(elements_of(rows(2).concatenate(rows(3)).batch(4)),
              ElementsAre("[0, 1, 0, 1]", "[2]"));
  EXPECT_THAT(elements_of(tensors(2).concatenate(rows(3)).batch(4)),
              ElementsAre("[0, 1, 0, 1]", "[2]"));
  EXPECT_THAT(elements_of(names({"a"}).concatenate(names({"b"})).batch(2)),
              ElementsAre("['a', 'b']"));
}

TEST(Concatenate, HasTheMostGeneralCommonShape) {
  EXPECT_EQ(rows(2).concatenate(rows(4).batch(2)).element_spec().to_string(), "int64[...]");
  const Dataset twos = Dataset::from_tensor_slices(at::arange(4).view({2, 2}));
  const Dataset threes = Dataset::from_tensor_slices(at::arange(6).view({2, 3}));
  EXPECT_EQ(twos.concatenate(threes).element_spec().to_string(), "int64[?]");
  EXPECT_EQ(twos.concatenate(twos).element_spec().to_string(), "int64[2]");
}

TEST(Concatenate, NamesUnequalShapesInABatch) {
  const Dataset dataset = rows(1).concatenate(rows(2).batch(2)).batch(2);
  Iterator iterator = dataset.iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).message(),
              HasSubstr("[] in field 0 as in the first element, got [2] in element 1"));
}

TEST(Concatenate, CountsItsElements) {
  const Dataset unknown = rows(5).ignore_errors().unique();
  EXPECT_EQ(rows(5).concatenate(rows(2)).cardinality(), 7);
  EXPECT_EQ(unknown.concatenate(rows(5)).cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(5).concatenate(rows(5).repeat()).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(unknown.concatenate(rows(5).repeat()).cardinality(), kInfiniteCardinality);
}

TEST(Concatenate, RefusesAnotherDtype) {
  const Error error =
      error_of([] { rows(3).concatenate(Dataset::range(3, {.dtype = at::kDouble})); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("int64[] and float64[]"));
}

TEST(Concatenate, RefusesAnotherStructure) {
  EXPECT_EQ(error_of([] { rows(3).concatenate(rows(3).enumerate()); }).code(),
            ErrorCode::invalid_argument);
}

TEST(Concatenate, GoesOnBehindAnError) {
  EXPECT_THAT(elements_of(failing_at(1, 2).concatenate(failing_at(0, 2))),
              ElementsAre("0", "error data_loss", "error data_loss", "1"));
}

}  // namespace
}  // namespace cohort::data
