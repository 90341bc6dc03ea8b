// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/frozen_tensor.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <optional>

#include "cohort/function/tracer/cases_for_tests.h"

namespace cohort::function {
namespace {

TEST(FrozenTensorTest, AWriteAndTheEndOfTheTensorAreSeen) {
  std::optional<at::Tensor> small(at::ones({3})), large(at::ones({1000}));
  for (auto* one : {&small, &large}) {
    const FrozenTensor frozen(**one), written(**one);
    EXPECT_TRUE(frozen.is_current());
    (*one)->select(0, 1).add_(0);
    EXPECT_FALSE(frozen.is_current()) << "written, if with the same values";
    const FrozenTensor now(**one);
    EXPECT_TRUE(now.is_current());
    one->reset();
    EXPECT_FALSE(now.is_current());
    EXPECT_FALSE(now.is_alive());
  }
}

// LibTorch's version counter does not count these writes.
TEST(FrozenTensorTest, WritesThroughPointersAndToDataAreSeen) {
  for (const std::int64_t size : {3, 256, 257, 16000}) {
    at::Tensor x = at::ones({size});
    const FrozenTensor frozen(x);
    x.data_ptr<float>()[size - 1] = 5;
    EXPECT_FALSE(frozen.is_current()) << size;
    const FrozenTensor now(x);
    EXPECT_TRUE(now.is_current()) << size;
    x.data().add_(1);
    EXPECT_FALSE(now.is_current()) << size;
  }
}

TEST(FrozenTensorTest, OtherMemoryAndAnotherShapeAreSeen) {
  for (const std::int64_t size : {2, 1000}) {
    at::Tensor x = at::zeros({0}), other = at::ones({size});
    const at::Tensor first = at::zeros({size});
    x.set_data(first);
    const FrozenTensor frozen(x);
    x.set_data(other);
    EXPECT_FALSE(frozen.is_current());
    const FrozenTensor now(x);
    x.resize_({1});
    EXPECT_FALSE(now.is_current());
    const FrozenTensor small(x);
    x.resize_({1});
    EXPECT_TRUE(small.is_current());
  }
}

TEST(FrozenTensorTest, OfATemporaryTensorTheMemoryCounts) {
  const at::Tensor x = at::ones({1000});
  const FrozenTensor frozen(x.data());
  EXPECT_TRUE(frozen.is_alive());
  EXPECT_TRUE(frozen.is_current());
  x[999] = 2;
  EXPECT_FALSE(frozen.is_current());
}

class FrozenTensorsOfATrace : public TraceCase {};

TEST_F(FrozenTensorsOfATrace, AreTheCapturedOnesThatLiveOn) {
  const at::Tensor captured = at::ones({3}), number = at::ones({});
  at::Tensor w = parameter("w", {3});
  const Traced result = traced({normal({3}, 0)}, {normal({3}, 1)}, [&](const Tensors& in) {
    return Tensors{in[0] * 2 + captured * number + w + at::arange(3)};
  });
  ASSERT_EQ(result.frozen.size(), 2);
  captured.add_(1);
  EXPECT_FALSE(result.frozen[0].is_current());
  EXPECT_TRUE(result.frozen[1].is_current());
}

}  // namespace
}  // namespace cohort::function
