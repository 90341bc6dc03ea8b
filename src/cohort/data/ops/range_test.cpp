// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <limits>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

INSTANTIATE_TEST_SUITE_P(
    Range, DatasetOp,
    ::testing::Values(
        DatasetOpCase{"Up", [] { return Dataset::range(7); }},
        DatasetOpCase{"Down", [] { return Dataset::range(-4, {.start = 5, .step = -3}); }},
        DatasetOpCase{.name = "Empty", .make = [] { return Dataset::range(0); }, .is_empty = true},
        DatasetOpCase{"Float", [] { return Dataset::range(3, {.dtype = at::kFloat}); }}));

TEST(Range, StopsBeforeStop) {
  EXPECT_THAT(scalars_of(Dataset::range(5)), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(scalars_of(Dataset::range(10, {.start = 1, .step = 4})), ElementsAre(1, 5, 9));
  EXPECT_THAT(scalars_of(Dataset::range(9, {.start = 1, .step = 4})), ElementsAre(1, 5));
}

TEST(Range, GoesDown) {
  EXPECT_THAT(scalars_of(Dataset::range(0, {.start = 4, .step = -2})), ElementsAre(4, 2));
}

TEST(Range, IsEmptyWhereStopLiesBehind) {
  EXPECT_THAT(scalars_of(Dataset::range(-5)), ElementsAre());
  EXPECT_EQ(Dataset::range(-5).cardinality(), 0);
  EXPECT_EQ(Dataset::range(5, {.step = -1}).cardinality(), 0);
}

TEST(Range, HasScalarsOfItsDtype) {
  EXPECT_EQ(Dataset::range(5).element_spec().to_string(), "int64[]");
  EXPECT_EQ(Dataset::range(5, {.dtype = at::kByte}).element_spec().to_string(), "uint8[]");
  EXPECT_THAT(elements_of(Dataset::range(2, {.dtype = at::kDouble})), ElementsAre("0", "1"));
}

TEST(Range, DoesNotOverflowAtTheEdgesOfInt64) {
  EXPECT_THAT(scalars_of(Dataset::range(kMax, {.start = kMax - 2})),
              ElementsAre(kMax - 2, kMax - 1));
  EXPECT_THAT(scalars_of(Dataset::range(kMin, {.start = kMin + 1, .step = -1})),
              ElementsAre(kMin + 1));
  EXPECT_THAT(scalars_of(Dataset::range(kMin, {.start = kMax, .step = kMin})),
              ElementsAre(kMax, -1));
  EXPECT_EQ(error_of([] { Dataset::range(kMax, {.start = kMin}); }).code(),
            ErrorCode::invalid_argument);
}

TEST(Range, ToTheLargestNumberIsInfinite) {
  EXPECT_EQ(Dataset::range(kMax).cardinality(), kInfiniteCardinality);
  EXPECT_EQ(Dataset::range(kMax - 1).cardinality(), kMax - 1);
  EXPECT_EQ(Dataset::range(kMax, {.start = kMax}).cardinality(), 0);
}

TEST(Range, RefusesAStepOfZero) {
  const Error error = error_of([] { Dataset::range(5, {.step = 0}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("[data.range] expected step != 0, got 0"));
}

TEST(Range, RefusesNumbersThatDoNotFitTheDtype) {
  const Error error = error_of([] { Dataset::range(300, {.dtype = at::kByte}); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.message(), HasSubstr("expected numbers that fit uint8, got 0 to 299"));
}

TEST(Range, RefusesDtypesThatAreNoNumbers) {
  EXPECT_THAT(error_of([] { Dataset::range(3, {.dtype = at::kBool}); }).message(),
              HasSubstr("got bool"));
}

TEST(Range, GathersItsValuesIntoBatches) {
  EXPECT_THAT(elements_of(Dataset::range(9, {.start = 1, .step = 2}).batch(3)),
              ElementsAre("[1, 3, 5]", "[7]"));
}

}  // namespace
}  // namespace cohort::data
