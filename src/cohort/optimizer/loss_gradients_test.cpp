// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/detail/loss_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace cohort::internal {
namespace {

// As torch::nn::Linear computes it. The gradient of the weight is a view.
std::vector<at::Tensor> gradients_of_linear() {
  const Variable weight = local_variable("weight", at::ones({2, 3}), true);
  const Variable bias = local_variable("bias", at::ones({2}), true);
  const at::Tensor out = at::addmm(bias.tensor(), at::ones({4, 3}), weight.tensor().t());
  return loss_gradients(out.square().sum(), {weight.tensor(), bias.tensor()},
                        std::vector{weight, bias});
}

TEST(IsOnlyUser, OfTheGradientsOfALinearLayer) {
  const std::vector<at::Tensor> gradients = gradients_of_linear();
  EXPECT_TRUE(is_only_user(gradients[0]));
  EXPECT_TRUE(is_only_user(gradients[1]));
}

TEST(IsOnlyUser, UnlessAnotherTensorHasTheMemory) {
  const std::vector<at::Tensor> gradients = gradients_of_linear();
  const at::Tensor same = gradients[0];
  EXPECT_FALSE(is_only_user(gradients[0]));
  const at::Tensor row = gradients[1].view({1, 2});
  EXPECT_FALSE(is_only_user(gradients[1]));
  EXPECT_FALSE(is_only_user(row));
}

TEST(IsOnlyUser, UnlessTheTensorOfWhichItIsAViewIsKept) {
  const at::Tensor whole = at::ones({2, 3});
  EXPECT_FALSE(is_only_user(whole.t()));
  EXPECT_FALSE(is_only_user(whole.t().t()));
}

TEST(IsOnlyUser, UnlessTheMemoryIsTheUsers) {
  float memory[] = {1, 2};
  EXPECT_FALSE(is_only_user(at::from_blob(memory, {2})));
}

}  // namespace
}  // namespace cohort::internal
