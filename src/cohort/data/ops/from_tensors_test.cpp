// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

Dataset triple() {
  return Dataset::from_tensors(Nest::tuple({1, at::arange(3), Nest::map({{"s", "hey"}})}));
}

INSTANTIATE_TEST_SUITE_P(
    FromTensors, DatasetOp,
    ::testing::Values(DatasetOpCase{"Nest", [] { return triple(); }},
                      DatasetOpCase{"Repeated", [] { return triple().repeat(3).batch(2); }},
                      DatasetOpCase{"Empty", [] {
                                      return Dataset::from_tensors(at::ones({0, 2}));
                                    }}));

TEST(FromTensors, YieldsTheNestOnce) {
  EXPECT_THAT(elements_of(triple()), ElementsAre("(1, [0, 1, 2], {s: 'hey'})"));
  EXPECT_EQ(triple().cardinality(), 1);
  EXPECT_EQ(triple().element_spec().to_string(), "(int64[], int64[3], {s: string[]})");
}

TEST(FromTensors, TakesValuesOfTheHost) {
  const Dataset dataset = Dataset::from_tensors(Nest::tuple({7, 0.5, true, "x"}));
  EXPECT_EQ(dataset.element_spec().to_string(), "(int64[], float32[], bool[], string[])");
  EXPECT_THAT(elements_of(dataset), ElementsAre("(7, 0.5, 1, 'x')"));
}

TEST(FromTensors, IsRepeated) {
  EXPECT_EQ(elements_of(Dataset::from_tensors(5).repeat(7).repeat(14)).size(), 98U);
  EXPECT_THAT(elements_of(Dataset::from_tensors(at::arange(2)).repeat(3).batch(2)),
              ElementsAre("[[0, 1], [0, 1]]", "[[0, 1]]"));
}

TEST(FromTensors, GivesElementsOfTheirOwn) {
  const at::Tensor given = at::arange(2);
  for (Nest& element : Dataset::from_tensors(given).repeat(2)) element.tensor().zero_();
  EXPECT_EQ(show(given), "[0, 1]");
}

TEST(FromTensors, RefusesWhatHasNoTensor) {
  EXPECT_EQ(error_of([] { Dataset::from_tensors(Nest::tuple({})); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([] { Dataset::from_tensors(Nest()); }).code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace cohort::data
