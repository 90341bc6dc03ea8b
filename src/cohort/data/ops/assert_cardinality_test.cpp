// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(
    AssertCardinality, DatasetOp,
    ::testing::Values(DatasetOpCase{"Rows", [] { return rows(4).assert_cardinality(4); }},
                      DatasetOpCase{"Tensors",
                                    [] { return tensors(4).unique().assert_cardinality(4); }},
                      DatasetOpCase{.name = "Nothing",
                                    .make = [] { return tensors(0).assert_cardinality(0); },
                                    .is_empty = true}));

TEST(AssertCardinality, IsSilentWhereItIsTrue) {
  const Dataset dataset = tensors(3).unique().assert_cardinality(3);
  EXPECT_THAT(elements_of(dataset), ElementsAre("0", "1", "2"));
  EXPECT_EQ(dataset.cardinality(), 3);
}

TEST(AssertCardinality, ReportsTooFewOnceAtTheEnd) {
  EXPECT_THAT(elements_of(rows(2).assert_cardinality(5)),
              ElementsAre("0", "1", "error failed_precondition"));
}

TEST(AssertCardinality, ReportsTooManyOnceBehindTheExpectedOnes) {
  EXPECT_THAT(elements_of(rows(5).assert_cardinality(2)),
              ElementsAre("0", "1", "error failed_precondition"));
}

TEST(AssertCardinality, NamesBothNumbers) {
  Iterator iterator = rows(1).assert_cardinality(2).iterator();
  iterator.get_next();
  EXPECT_THAT(error_of([&] { iterator.get_next(); }).message(),
              HasSubstr("[data.assert_cardinality] expected 2 elements, got 1"));
}

TEST(AssertCardinality, CountsGoodElements) {
  EXPECT_THAT(elements_of(failing_at(1, 3).assert_cardinality(2)),
              ElementsAre("0", "error data_loss", "2"));
  EXPECT_THAT(elements_of(failing_at(1, 3).assert_cardinality(3)),
              ElementsAre("0", "error data_loss", "2", "error failed_precondition"));
}

TEST(AssertCardinality, MayBeInfinite) {
  EXPECT_THAT(elements_of(tensors(2).repeat().assert_cardinality(kInfiniteCardinality), 3),
              ElementsAre("0", "1", "0"));
  EXPECT_THAT(elements_of(tensors(1).assert_cardinality(kInfiniteCardinality)),
              ElementsAre("0", "error failed_precondition"));
}

TEST(AssertCardinality, RefusesNumbersThatAreNone) {
  EXPECT_EQ(error_of([] { rows(1).assert_cardinality(kUnknownCardinality); }).code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
