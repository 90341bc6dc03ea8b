// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

// Their common norm is 5.
const std::vector<at::Tensor>& three_and_four() {
  static const std::vector<at::Tensor> kGradients{at::tensor({3.0, 0.0}), at::tensor({4.0})};
  return kGradients;
}

TEST(ClipByGlobalNorm, ScalesAllByOneFactor) {
  const auto [clipped, norm] = clip_by_global_norm(three_and_four(), 2.5);
  EXPECT_EQ(norm.item<double>(), 5);
  EXPECT_TRUE(at::equal(clipped[0], at::tensor({1.5, 0.0})));
  EXPECT_TRUE(at::equal(clipped[1], at::tensor({2.0})));
}

TEST(ClipByGlobalNorm, LeavesSmallGradients) {
  const auto [clipped, norm] = clip_by_global_norm(three_and_four(), 8);
  EXPECT_TRUE(at::equal(clipped[0], three_and_four()[0]));
  EXPECT_TRUE(at::equal(clipped[1], three_and_four()[1]));
}

TEST(ClipByGlobalNorm, LeavesZeroGradientsZero) {
  const auto [clipped, norm] = clip_by_global_norm({at::tensor({0.0, 0.0})}, 1);
  EXPECT_TRUE(at::equal(clipped[0], at::tensor({0.0, 0.0})));
}

TEST(ClipByGlobalNorm, PassesUndefinedGradientsThrough) {
  const auto [clipped, norm] = clip_by_global_norm({at::Tensor(), at::tensor({4.0})}, 2);
  EXPECT_FALSE(clipped[0].defined());
  EXPECT_EQ(clipped[1].item<double>(), 2);
  EXPECT_EQ(clip_by_global_norm(std::vector<at::Tensor>(2), 2).global_norm.item<double>(), 0);
}

TEST(ClipByGlobalNorm, ANormThatIsNotFiniteGivesNaN) {
  const auto [clipped, norm] =
      clip_by_global_norm({at::tensor({std::numeric_limits<double>::infinity()})}, 2);
  EXPECT_TRUE(std::isnan(clipped[0].item<double>()));
}

// Regression: the squares of float16 were infinite from 256 on, and their float32 sum gave a norm
// of infinity, by which finite gradients became zeros.
TEST(ClipByGlobalNorm, ANormThatOverflowsGivesNaNAndThatOfHalvesDoesNot) {
  const auto half = clip_by_global_norm({at::full({4}, 300, at::kHalf)}, 300);
  EXPECT_EQ(half.global_norm.item<double>(), 600);
  EXPECT_EQ(half.gradients[0].scalar_type(), at::kHalf);
  EXPECT_EQ(half.gradients[0][0].item<double>(), 150);
  const auto large = clip_by_global_norm({at::full({4}, 1e30, at::kFloat)}, 1);
  EXPECT_TRUE(std::isinf(large.global_norm.item<double>()));
  EXPECT_TRUE(std::isnan(large.gradients[0][0].item<double>()));
}

// Row 2 comes twice: its sum is (3, 0).
TEST(ClipByGlobalNorm, SparseRowsStayRowsAndCountAsTheDenseGradient) {
  const at::Tensor ids = at::tensor(std::vector<std::int64_t>{2, 0, 2}).view({1, 3});
  const at::Tensor values = at::tensor({1.0, 2.0, 0.0, 4.0, 2.0, -2.0}).view({3, 2});
  const at::Tensor rows =
      at::sparse_coo_tensor(ids, values, {5, 2}, at::TensorOptions(at::kDouble));
  const auto [clipped, norm] = clip_by_global_norm({rows}, 2.5);
  EXPECT_EQ(norm.item<double>(), 5);
  ASSERT_TRUE(clipped[0].is_sparse());
  EXPECT_EQ(clipped[0]._nnz(), 2);
  const auto dense = clip_by_global_norm({rows.to_dense()}, 2.5);
  EXPECT_TRUE(at::equal(clipped[0].to_dense(), dense.gradients[0]));
}

TEST(ClipByGlobalNorm, TakesWhatComputeGradientsGivesAndReturnsItsNorm) {
  const Variable variable = local_variable("w", at::tensor({3.0, 4.0}));
  const SGD sgd({variable}, {.learning_rate = 1});
  const auto gradients = sgd.compute_gradients(variable.tensor().square().sum().div(2));
  const auto [clipped, norm] = clip_by_global_norm(gradients, 2.5);
  EXPECT_EQ(norm.item<double>(), 5);
  EXPECT_EQ(clipped[0].second, variable);
  sgd.apply_gradients(clipped);
  EXPECT_TRUE(at::equal(variable.read(), at::tensor({1.5, 2.0})));
}

TEST(ClipByGlobalNorm, RefusesANormThatIsNotPositive) {
  EXPECT_THAT([] { clip_by_global_norm(three_and_four(), 0); },
              testing::throws_error(ErrorCode::invalid_argument,
                                    "[optimizer.clip] expected a finite max_norm > 0"));
}

}  // namespace
}  // namespace cohort
