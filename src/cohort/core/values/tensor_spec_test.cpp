// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/tensor_spec.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "cohort/core/error.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

TensorSpec spec(std::vector<std::int64_t> sizes, at::ScalarType dtype = at::kFloat) {
  return {dtype, std::move(sizes)};
}
const TensorSpec kUnranked{at::kFloat, std::nullopt};

TEST(TensorSpec, DescribesATensor) {
  EXPECT_EQ(TensorSpec::of(at::ones({2, 3}, at::kLong)), spec({2, 3}, at::kLong));
  EXPECT_EQ(TensorSpec::of(at::ones({})), spec({}));
}

TEST(TensorSpec, IsStaticWhenEverySizeIsKnown) {
  EXPECT_TRUE(spec({2, 3}).is_static());
  EXPECT_TRUE(spec({}).is_static());
  EXPECT_FALSE(spec({2, -1}).is_static());
  EXPECT_FALSE(kUnranked.is_static());
}

TEST(TensorSpec, AcceptsWhatIsNoLessKnownThanItself) {
  EXPECT_TRUE(spec({-1, 3}).accepts(spec({2, 3})));
  EXPECT_TRUE(spec({-1, 3}).accepts(spec({-1, 3})));
  EXPECT_TRUE(kUnranked.accepts(spec({2, 3})));
  EXPECT_TRUE(kUnranked.accepts(kUnranked));
  EXPECT_FALSE(spec({2, 3}).accepts(spec({-1, 3})));
  EXPECT_FALSE(spec({2, 3}).accepts(kUnranked));
  EXPECT_FALSE(spec({2, 3}).accepts(spec({2, 3, 1})));
  EXPECT_FALSE(spec({2, 3}).accepts(spec({2, 4})));
  EXPECT_FALSE(spec({2, 3}).accepts(spec({2, 3}, at::kDouble)));
}

TEST(TensorSpec, CountsElementsAndBytes) {
  EXPECT_EQ(spec({2, 3}, at::kDouble).element_count(), 6);
  EXPECT_EQ(spec({2, 3}, at::kDouble).byte_count(), 48);
  EXPECT_EQ(spec({}, at::kBool).byte_count(), 1);
  EXPECT_EQ(spec({4, 0}).byte_count(), 0);
}

// Regression: an unknown size was a fault of Cohort, and strings threw LibTorch's error.
TEST(TensorSpec, CountsNeitherUnknownSizesNorBytesOfStrings) {
  EXPECT_THAT(
      [] {
        spec({2, -1}).element_count();
      },
      testing::throws_error(ErrorCode::invalid_argument, "got float32[2, ?]"));
  EXPECT_THAT([] { kUnranked.byte_count(); },
              testing::throws_error(ErrorCode::invalid_argument, "got float32[...]"));
  EXPECT_EQ(spec({3}, kString).element_count(), 3);
  EXPECT_THAT([] { spec({3}, kString).byte_count(); },
              testing::throws_error(ErrorCode::invalid_argument, "got string[3]"));
}

TEST(TensorSpec, WritesItself) {
  EXPECT_EQ(spec({64, 784}).to_string(), "float32[64, 784]");
  EXPECT_EQ(spec({-1}, at::kLong).to_string(), "int64[?]");
  EXPECT_EQ(spec({}, at::kBool).to_string(), "bool[]");
  EXPECT_EQ((TensorSpec{at::kByte, std::nullopt}).to_string(), "uint8[...]");
}

TEST(DtypeName, IsTheNameTensorFlowUses) {
  using at::ScalarType;
  const std::pair<ScalarType, const char*> rows[] = {{ScalarType::Byte, "uint8"},
                                                     {ScalarType::Char, "int8"},
                                                     {ScalarType::Short, "int16"},
                                                     {ScalarType::Int, "int32"},
                                                     {ScalarType::Long, "int64"},
                                                     {ScalarType::Half, "float16"},
                                                     {ScalarType::Float, "float32"},
                                                     {ScalarType::Double, "float64"},
                                                     {ScalarType::Bool, "bool"},
                                                     {ScalarType::BFloat16, "bfloat16"},
                                                     {ScalarType::ComplexFloat, "complex64"},
                                                     {ScalarType::ComplexDouble, "complex128"}};
  for (const auto& [dtype, name] : rows) EXPECT_EQ(dtype_name(dtype), name);
}

}  // namespace
}  // namespace cohort
