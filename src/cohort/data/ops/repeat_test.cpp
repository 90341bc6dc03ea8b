// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;

INSTANTIATE_TEST_SUITE_P(
    Repeat, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Rows", [] { return rows(3).repeat(3); }},
        DatasetOpCase{"Tensors", [] { return tensors(3).repeat(3); }},
        DatasetOpCase{
            "Shuffled",
            [] {
              return rows(5).shuffle(3, {.seed = 2, .reshuffle_each_iteration = false}).repeat(2);
            }},
        DatasetOpCase{"Nested", [] { return tensors(2).repeat(2).repeat(2); }},
        DatasetOpCase{.name = "Never", .make = [] { return rows(3).repeat(0); }, .is_empty = true},
        DatasetOpCase{
            .name = "Nothing", .make = [] { return rows(0).repeat(); }, .is_empty = true}));

TEST(Repeat, YieldsEachEpochWhole) {
  EXPECT_THAT(scalars_of(rows(3).repeat(2)), ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(scalars_of(tensors(2).repeat(2)), ElementsAre(0, 1, 0, 1));
}

TEST(Repeat, GoesOnForEver) {
  EXPECT_THAT(scalars_of(rows(2).repeat(), 5), ElementsAre(0, 1, 0, 1, 0));
  EXPECT_THAT(scalars_of(tensors(2).repeat(-7), 5), ElementsAre(0, 1, 0, 1, 0));
}

TEST(Repeat, FillsBatchesAcrossEpochs) {
  EXPECT_THAT(elements_of(rows(3).repeat(2).batch(4)), ElementsAre("[0, 1, 2, 0]", "[1, 2]"));
  EXPECT_THAT(elements_of(tensors(3).repeat(2).batch(4)), ElementsAre("[0, 1, 2, 0]", "[1, 2]"));
}

TEST(Repeat, EndsWhereTheInputIsEmpty) {
  EXPECT_THAT(scalars_of(rows(0).repeat()), ElementsAre());
  EXPECT_THAT(scalars_of(tensors(0).repeat()), ElementsAre());
  EXPECT_EQ(rows(0).repeat().cardinality(), 0);
}

TEST(Repeat, CountsItsElements) {
  EXPECT_EQ(rows(3).repeat(4).cardinality(), 12);
  EXPECT_EQ(rows(3).repeat(0).cardinality(), 0);
  EXPECT_EQ(rows(3).repeat().cardinality(), kInfiniteCardinality);
  EXPECT_EQ(rows(3).repeat().repeat(2).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(rows(3).repeat().repeat(0).cardinality(), 0);
}

TEST(Repeat, RepeatsErrorsWithTheirElements) {
  const Dataset failing = rows(2).map([](at::Tensor x) {
    COHORT_CHECK(x.item<std::int64_t>() != 0, ErrorCode::data_loss, "zero");
    return x;
  });
  EXPECT_THAT(elements_of(failing.repeat(2)),
              ElementsAre("error data_loss", "1", "error data_loss", "1"));
}

}  // namespace
}  // namespace cohort::data
