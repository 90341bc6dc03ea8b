// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/internal/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    Batch, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(10).batch(4); }},
                      DatasetOpCase{"Tensors", [] { return tensors(10).batch(4); }},
                      DatasetOpCase{"Dropped",
                                    [] { return tensors(10).batch(4, {.drop_remainder = true}); }},
                      DatasetOpCase{"OfBatches", [] { return rows(8).batch(2).batch(3); }},
                      DatasetOpCase{"Larger", [] { return rows(3).batch(1'000'000'000'000); }}));

// Element i is a vector of i ones.
Dataset growing(std::int64_t count) {
  return rows(count).map([](at::Tensor x) { return at::ones({x.item<std::int64_t>()}); });
}

Dataset failing_at(std::int64_t bad, std::int64_t count) {
  return rows(count).map([bad](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != bad, ErrorCode::invalid_argument, "bad");
    return x;
  });
}

TEST(Batch, KeepsTheLastShortBatch) {
  EXPECT_THAT(elements_of(rows(5).batch(2)), ElementsAre("[0, 1]", "[2, 3]", "[4]"));
  EXPECT_THAT(elements_of(tensors(5).batch(2)), ElementsAre("[0, 1]", "[2, 3]", "[4]"));
}

TEST(Batch, DropsTheLastShortBatchWhereAsked) {
  EXPECT_THAT(elements_of(rows(5).batch(2, {.drop_remainder = true})),
              ElementsAre("[0, 1]", "[2, 3]"));
  EXPECT_THAT(elements_of(tensors(5).batch(2, {.drop_remainder = true})),
              ElementsAre("[0, 1]", "[2, 3]"));
}

TEST(Batch, HasAStaticSizeOnlyWhereNoBatchIsShort) {
  EXPECT_EQ(rows(4).batch(2).element_spec().to_string(), "int64[?]");
  EXPECT_EQ(rows(4).batch(2, {.drop_remainder = true}).element_spec().to_string(), "int64[2]");
  EXPECT_EQ(rows(4).batch(2).batch(2, {.drop_remainder = true}).element_spec().to_string(),
            "int64[2, ?]");
}

TEST(Batch, CountsItsBatches) {
  EXPECT_EQ(rows(5).batch(2).cardinality(), 3);
  EXPECT_EQ(rows(5).batch(2, {.drop_remainder = true}).cardinality(), 2);
  EXPECT_EQ(rows(5).repeat().batch(2).cardinality(), kInfiniteCardinality);
}

TEST(Batch, StacksEveryField) {
  const Dataset dataset = Dataset::from_tensor_slices(
      Nest::map({{"x", at::arange(6).view({3, 2})}, {"y", at::arange(3)}}));
  EXPECT_THAT(elements_of(dataset.batch(2)),
              ElementsAre("{x: [[0, 1], [2, 3]], y: [0, 1]}", "{x: [[4, 5]], y: [2]}"));
}

TEST(Batch, StacksElementsThatAreNotContiguous) {
  const Dataset dataset =
      Dataset::from_tensor_slices(at::arange(8).view({2, 2, 2})).map([](at::Tensor x) {
        return x.t();
      });
  EXPECT_THAT(elements_of(dataset.batch(2)), ElementsAre("[[[0, 2], [1, 3]], [[4, 6], [5, 7]]]"));
}

TEST(Batch, GrowsBeyondItsFirstAllocation) {
  EXPECT_EQ(elements_of(tensors(10'000).batch(10'000)), elements_of(rows(10'000).batch(10'000)));
}

TEST(Batch, NamesTheElementOfAnotherShape) {
  Iterator iterator = growing(3).batch(3).iterator();
  const Error error = error_of([&] { iterator.try_next(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(
      error.message(),
      HasSubstr("field 0 of the first is float32[0], got float32[1] in element 1 of the batch"));
  EXPECT_FALSE(iterator.try_next().has_value());
}

// One failing element takes its batch with it, once; what follows stays in step.
TEST(Batch, ReportsAnErrorInPlaceOfItsBatch) {
  EXPECT_THAT(elements_of(failing_at(2, 7).batch(2)),
              ElementsAre("[0, 1]", "error invalid_argument", "[4, 5]", "[6]"));
  EXPECT_THAT(elements_of(failing_at(3, 5).batch(1)),
              ElementsAre("[0]", "[1]", "[2]", "error invalid_argument", "[4]"));
}

TEST(Batch, ReportsAnErrorInTheLastShortBatch) {
  EXPECT_THAT(elements_of(failing_at(4, 5).batch(2)),
              ElementsAre("[0, 1]", "[2, 3]", "error invalid_argument"));
}

TEST(Batch, RefusesSizesThatAreNone) {
  EXPECT_THAT(error_of([] { rows(3).batch(0); }).message(),
              HasSubstr("[data.batch] expected batch_size > 0, got 0"));
  EXPECT_EQ(error_of([] { rows(3).batch(-2); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
