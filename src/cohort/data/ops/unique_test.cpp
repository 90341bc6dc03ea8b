// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/internal/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset names() { return Dataset::from_tensor_slices(StringTensor({5}, {"b", "a", "b", "", "a"})); }

INSTANTIATE_TEST_SUITE_P(
    Unique, DatasetOp,
    ::testing::Values(DatasetOpCase{"Numbers", [] { return rows(3).repeat(2).unique(); }},
                      DatasetOpCase{"Strings", [] { return names().unique(); }}));

TEST(Unique, YieldsEveryScalarWhereItComesFirst) {
  EXPECT_THAT(scalars_of(rows(3).concatenate(rows(5)).unique()), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(elements_of(names().unique()), ElementsAre("'b'", "'a'", "''"));
  EXPECT_EQ(names().unique().cardinality(), kUnknownCardinality);
}

TEST(Unique, RefusesWhatIsNoScalarIntegerOrString) {
  EXPECT_THAT(error_of([] { rows(3).batch(2).unique(); }).message(),
              HasSubstr("expected elements that are one integer or one string, got int64[?]"));
  EXPECT_EQ(error_of([] { Dataset::range(3, {.dtype = at::kFloat}).unique(); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { rows(3).enumerate().unique(); }).code(), ErrorCode::invalid_argument);
}

TEST(Unique, GoesOnBehindAnError) {
  EXPECT_THAT(elements_of(failing_at(1, 3).repeat(2).unique()),
              ElementsAre("0", "error data_loss", "2", "error data_loss"));
}

}  // namespace
}  // namespace cohort::data
