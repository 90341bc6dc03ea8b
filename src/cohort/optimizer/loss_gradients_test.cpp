// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/loss_gradients.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
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

// Regression: LibTorch calls no hooks of tensors whose gradient it returns.
TEST(LossGradients, AreThoseThatHooksHaveChanged) {
  const Variable a = local_variable("a", at::ones({2}), true);
  const Variable b = local_variable("b", at::ones({2}), true);
  bool has_graph = true;
  a.tensor().register_hook([](const at::Tensor& gradient) { return gradient + 1; });
  a.tensor().register_hook([&](const at::Tensor& gradient) {
    has_graph = (gradient * b.tensor()).requires_grad();
    gradient.mul_(10);
  });
  const auto gradients =
      loss_gradients((a.tensor() + b.tensor()).sum(), {a.tensor(), b.tensor()}, std::vector{a, b});
  EXPECT_TRUE(gradients[0].equal(at::full({2}, 20.0F)));
  EXPECT_TRUE(gradients[1].equal(at::ones({2})));
  EXPECT_FALSE(has_graph);
}

TEST(LossGradients, CallNoHookWithoutAGradient) {
  const Variable a = local_variable("a", at::ones({2}), true);
  const Variable b = local_variable("b", at::ones({2}), true);
  int calls = 0;
  b.tensor().register_hook([&](const at::Tensor&) { ++calls; });
  (void)loss_gradients(a.tensor().sum(), {a.tensor(), b.tensor()}, std::vector{a, b});
  EXPECT_EQ(calls, 0);
}

}  // namespace
}  // namespace cohort::internal
