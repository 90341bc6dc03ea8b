// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/shipped_dataset.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/core/string_tensor.h"
#include "cohort/testing/throws_error.h"

namespace cohort::data {
namespace {

using testing::throws_error;

constexpr std::int64_t kRows = 400'000;  // of 4 bytes: more than ShippedDataset::kOwnBytesMax

Dataset of(const at::Tensor& tensor) { return Dataset::from_tensor_slices(Nest(tensor)); }
std::shared_ptr<const ShippedDataset> shipped(const Dataset& dataset) {
  return ship_to_workers({dataset}).front();
}

// Regression: the coordinator had the elements of a dataset twice.
TEST(ShippedDataset, SharesLargeTensorsWithTheDataset) {
  const Dataset dataset =
      Dataset::zip({of(at::arange(kRows, at::kInt)), of(at::ones({kRows}))}).batch(4);
  const auto sent = shipped(dataset);
  EXPECT_LT(sent->own_bytes(), ShippedDataset::kOwnBytesMax);
  EXPECT_EQ(sent->bytes(), dataset.serialize());
}

TEST(ShippedDataset, SharesStrings) {
  const StringTensor texts({20'000}, std::vector<std::string>(20'000, std::string(100, 'x')));
  const Dataset dataset = of(texts);
  const auto sent = shipped(dataset);
  EXPECT_LT(sent->own_bytes(), ShippedDataset::kOwnBytesMax);
  EXPECT_EQ(sent->bytes(), dataset.serialize());
}

TEST(ShippedDataset, CopiesSmallTensors) {
  at::Tensor values = at::ones({1'000});
  const Dataset dataset = of(values);
  const auto sent = shipped(dataset);
  const Bytes before = dataset.serialize();
  values.fill_(2);
  EXPECT_EQ(sent->bytes(), before);
}

// A worker that returns would get other elements than the others have.
TEST(ShippedDataset, RefusesASharedTensorThatWasWrittenTo) {
  at::Tensor values = at::ones({kRows});
  const auto sent = shipped(of(values));
  values.fill_(2);
  EXPECT_THAT([&] { sent->bytes(); },
              throws_error(ErrorCode::failed_precondition, "make the dataset from a clone()"));
}

TEST(ShippedDataset, KnowsEqualBytes) {
  const at::Tensor values = at::ones({kRows});
  const auto sent = shipped(of(values));
  EXPECT_TRUE(sent->has_same_bytes(*shipped(of(values))));
  EXPECT_TRUE(sent->has_same_bytes(*shipped(of(values.clone()))));
  EXPECT_FALSE(sent->has_same_bytes(*shipped(of(values * 2))));
  EXPECT_FALSE(sent->has_same_bytes(*shipped(of(values).take(3))));
}

}  // namespace
}  // namespace cohort::data
