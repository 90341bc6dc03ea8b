// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/element.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>

#include "cohort/data/graph/dataset_op_suite.h"

namespace cohort::data {
namespace {

ElementSpec spec(at::ScalarType dtype, std::optional<std::vector<std::int64_t>> sizes) {
  return ElementSpec::tuple({{dtype, std::move(sizes)}});
}

TEST(Optional, HoldsAValue) {
  const Optional optional = Optional::from_value(at::full({}, 37.F));
  EXPECT_TRUE(optional.has_value());
  EXPECT_EQ(show(optional.get_value()), "37");
  EXPECT_EQ(optional.element_spec().to_string(), "float32[]");
}

TEST(Optional, MayBeEmpty) {
  const Optional optional = Optional::empty(spec(at::kFloat, {{}}));
  EXPECT_FALSE(optional.has_value());
  EXPECT_EQ(error_of([&] { optional.get_value(); }).code(), ErrorCode::invalid_argument);
}

TEST(Optional, IsCompatibleWhereNoKnownSizeDiffers) {
  const Optional scalar = Optional::empty(spec(at::kFloat, std::vector<std::int64_t>{}));
  EXPECT_TRUE(scalar.is_compatible_with(spec(at::kFloat, std::vector<std::int64_t>{})));
  EXPECT_TRUE(scalar.is_compatible_with(spec(at::kFloat, std::nullopt)));
  EXPECT_FALSE(scalar.is_compatible_with(spec(at::kFloat, {{1}})));
  EXPECT_FALSE(scalar.is_compatible_with(spec(at::kInt, std::vector<std::int64_t>{})));
  EXPECT_TRUE(Optional::empty(spec(at::kLong, {{-1}})).is_compatible_with(spec(at::kLong, {{3}})));
}

TEST(Optional, IsNotCompatibleWithAnotherStructure) {
  const Optional pair = Optional::from_value(Nest::tuple({at::ones({}), StringTensor("x")}));
  EXPECT_TRUE(pair.is_compatible_with(pair.element_spec()));
  EXPECT_FALSE(pair.is_compatible_with(spec(at::kFloat, std::vector<std::int64_t>{})));
}

TEST(Optional, IsEmptyAtTheEndAgainAndAgain) {
  Iterator iterator = rows(1).iterator();
  EXPECT_TRUE(iterator.get_next_as_optional().has_value());
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(iterator.get_next_as_optional().has_value());
  EXPECT_EQ(iterator.get_next_as_optional().element_spec().to_string(), "int64[]");
}

TEST(Optional, DoesNotHideErrors) {
  Iterator iterator = failing_at(0, 2).iterator();
  EXPECT_EQ(error_of([&] { iterator.get_next_as_optional(); }).code(), ErrorCode::data_loss);
  EXPECT_EQ(show(iterator.get_next_as_optional().get_value()), "1");
}

}  // namespace
}  // namespace cohort::data
