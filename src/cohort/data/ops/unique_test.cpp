// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Dataset names() { return Dataset::from_tensor_slices(StringTensor({5}, {"b", "a", "b", "", "a"})); }

INSTANTIATE_TEST_SUITE_P(
    Unique, DatasetOp,
    ::testing::Values(DatasetOpCase{"Numbers", [] { return rows(3).repeat(2).unique(); }},
                      DatasetOpCase{"Strings", [] { return names().unique(); }}));

TEST(Unique, YieldsEveryElementWhereItComesFirst) {
  EXPECT_THAT(scalars_of(rows(3).concatenate(rows(5)).unique()), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(elements_of(names().unique()), ElementsAre("'b'", "'a'", "''"));
  EXPECT_EQ(names().unique().cardinality(), kUnknownCardinality);
}

TEST(Unique, ComparesElementsAsAWhole) {
  EXPECT_THAT(elements_of(rows(4).batch(2).repeat(2).unique()), ElementsAre("[0, 1]", "[2, 3]"));
  const Dataset words = Dataset::from_tensor_slices(StringTensor({3, 2}, {"a", "bc", "ab", "c",  //
                                                                          "a", "bc"}));
  EXPECT_THAT(elements_of(words.unique()), ElementsAre("['a', 'bc']", "['ab', 'c']"));
  const Dataset ranks = rows(2).concatenate(rows(2).batch(1)).concatenate(rows(2).batch(1));
  EXPECT_THAT(elements_of(ranks.unique()), ElementsAre("0", "1", "[0]", "[1]"));
  EXPECT_THAT(elements_of(Dataset::range(2, {.dtype = at::kInt}).repeat(2).unique()),
              ElementsAre("0", "1"));
}

TEST(Unique, RefusesOtherTypes) {
  const auto refusal = [](const Dataset& dataset) {
    const Error error = error_of([&] { dataset.unique(); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  };
  EXPECT_THAT(refusal(Dataset::range(3, {.dtype = at::kFloat})),
              HasSubstr("expected elements that are one tensor of int32, int64 or string, got "
                        "float32[]"));
  for (const at::ScalarType dtype : {at::kBool, at::kChar, at::kByte, at::kShort}) {
    const Dataset ones = Dataset::from_tensor_slices(at::ones({2}, dtype));
    EXPECT_THAT(refusal(ones), HasSubstr("got " + std::string(dtype_name(dtype)))) << dtype;
  }
  EXPECT_THAT(refusal(rows(3).enumerate()), HasSubstr("int64[]"));
}

TEST(Unique, GoesOnBehindAnError) {
  EXPECT_THAT(elements_of(failing_at(1, 3).repeat(2).unique()),
              ElementsAre("0", "error data_loss", "2", "error data_loss"));
}

}  // namespace
}  // namespace cohort::data
