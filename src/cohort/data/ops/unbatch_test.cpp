// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset letters() { return Dataset::from_tensor_slices(StringTensor({3}, {"a", "b", "c"})); }

INSTANTIATE_TEST_SUITE_P(
    Unbatch, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Batches", [] { return rows(7).batch(3).unbatch(); }},
        DatasetOpCase{"Static",
                      [] { return rows(7).batch(3, {.drop_remainder = true}).unbatch(); }},
        DatasetOpCase{"Nests", [] { return tensors(5).enumerate().batch(2).unbatch(); }},
        DatasetOpCase{"Strings", [] { return letters().batch(2).unbatch(); }},
        DatasetOpCase{"BatchedAnew", [] { return rows(11).batch(3).unbatch().batch(4); }},
        DatasetOpCase{"Twice", [] { return rows(8).batch(2).batch(3).unbatch().unbatch(); }}));

TEST(Unbatch, YieldsTheRowsOfBatches) {
  EXPECT_THAT(scalars_of(rows(5).batch(2).unbatch()), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(elements_of(Dataset::from_tensors(at::arange(4).view({2, 2})).unbatch()),
              ElementsAre("[0, 1]", "[2, 3]"));
  EXPECT_THAT(elements_of(letters().batch(2).unbatch()), ElementsAre("'a'", "'b'", "'c'"));
}

TEST(Unbatch, IsBatchedAnew) {
  EXPECT_THAT(elements_of(rows(7).batch(3).unbatch().batch(4)),
              ElementsAre("[0, 1, 2, 3]", "[4, 5, 6]"));
  EXPECT_THAT(elements_of(letters().batch(1).unbatch().batch(2)),
              ElementsAre("['a', 'b']", "['c']"));
  EXPECT_THAT(elements_of(failing_at(3, 10).batch(2).unbatch().batch(3)),
              ElementsAre("error data_loss", "[4, 5, 6]", "[7, 8, 9]"));
}

TEST(Unbatch, NamesUnequalRowsWhereTheyAreBatchedAnew) {
  const Dataset dataset = generated({at::zeros({2, 1}), at::zeros({2, 3})},
                                    ElementSpec::tuple({{at::kFloat, {{-1, -1}}}}));
  Iterator iterator = dataset.unbatch().batch(4).iterator();
  EXPECT_THAT(error_of([&] { iterator.try_next(); }).message(),
              HasSubstr("a row of float32[2, 1] in field 0 as in the first element, got one of "
                        "float32[2, 3] in element 2"));
}

TEST(Unbatch, LosesTheLeadingSize) {
  EXPECT_EQ(rows(8).batch(2).batch(3).unbatch().element_spec().to_string(), "int64[?]");
}

TEST(Unbatch, CountsItsElementsWhereTheBatchSizeIsStatic) {
  EXPECT_EQ(rows(6).batch(2, {.drop_remainder = true}).unbatch().cardinality(), 6);
  EXPECT_EQ(rows(6).batch(2).unbatch().cardinality(), kUnknownCardinality);
  EXPECT_EQ(rows(6).repeat().batch(2).unbatch().cardinality(), kInfiniteCardinality);
}

TEST(Unbatch, GivesElementsOfTheirOwn) {
  const Dataset dataset = Dataset::from_tensors(at::arange(3)).unbatch();
  for (Nest& element : dataset) element.tensor().zero_();
  EXPECT_THAT(scalars_of(dataset), ElementsAre(0, 1, 2));
}

TEST(Unbatch, RefusesScalarsAtOnce) {
  const Error error = error_of([] { rows(3).unbatch(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("[data.unbatch] expected batches, got elements int64[]"));
}

TEST(Unbatch, LosesOnlyABatchOfUnequalFields) {
  const TensorSpec any{at::kLong, {{-1}}};
  const Dataset dataset = generated(
      {Nest::tuple({at::arange(2), at::arange(2)}), Nest::tuple({at::arange(2), at::arange(1)}),
       Nest::tuple({at::arange(1), at::arange(1)})},
      ElementSpec::tuple({any, any}));
  EXPECT_THAT(elements_of(dataset.unbatch()),
              ElementsAre("(0, 0)", "(1, 1)", "error invalid_argument", "(0, 0)"));
}

TEST(Unbatch, PassesOverEmptyBatches) {
  const Dataset dataset = generated({at::arange(0), at::arange(2), at::arange(0)},
                                    ElementSpec::tuple({{at::kLong, {{-1}}}}));
  EXPECT_THAT(scalars_of(dataset.unbatch()), ElementsAre(0, 1));
}

}  // namespace
}  // namespace cohort::data
