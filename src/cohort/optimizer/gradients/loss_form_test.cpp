// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/gradients/loss_form.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace cohort::internal {
namespace {

struct LossForms : ::testing::Test {
  const at::Tensor x = at::ones({4, 3}).requires_grad_() * 2;
  const at::Tensor labels = at::zeros({4}, at::kLong);
};

TEST_F(LossForms, OfAMean) {
  EXPECT_EQ(form_of(x.mean()), LossForm::mean);
  EXPECT_EQ(form_of(x.sum() + x.mean() + 1), LossForm::mean);
  EXPECT_EQ(form_of(at::cross_entropy_loss(x, labels)), LossForm::mean);
}

// Regression: a mean that another step followed was not seen.
TEST_F(LossForms, OfAMeanThatOtherStepsFollow) {
  EXPECT_EQ(form_of(-x.gather(1, labels.unsqueeze(1)).mean()), LossForm::computed_mean);
  EXPECT_EQ(form_of(2 * x.mean() - 1), LossForm::computed_mean);
  EXPECT_EQ(form_of(1 - x.mean()), LossForm::computed_mean);
  EXPECT_EQ(form_of(at::rsub(x.mean(), 1)), LossForm::computed_mean);
  EXPECT_EQ(form_of((x.sum() - x.mean()).to(at::kDouble)), LossForm::computed_mean);
}

// Regression: only mean() was seen.
TEST_F(LossForms, OfASumThatIsDividedByTheNumberOfItsRows) {
  EXPECT_EQ(form_of(x.flatten().sum() / x.numel()), LossForm::computed_mean);
  EXPECT_EQ(form_of(x.sum() / x.size(0)), LossForm::computed_mean);
  EXPECT_EQ(form_of(x.sum(1).sum(0) * (1.0F / 4)), LossForm::computed_mean);
  const at::Tensor entropy = at::cross_entropy_loss(x, labels, {}, at::Reduction::Sum);
  EXPECT_EQ(form_of(entropy / 4), LossForm::computed_mean);
  EXPECT_EQ(form_of(entropy / 12), LossForm::scaled);
  EXPECT_EQ(form_of(at::mse_loss(x, at::zeros({4, 3}), at::Reduction::Sum) / 4),
            LossForm::computed_mean);
}

// Regression: a sum that the program divided by the rows of all replicas was taken for a mean.
TEST_F(LossForms, OfASumThatIsDividedByTheNumberOfItsElements) {
  EXPECT_EQ(form_of(x.sum() / x.numel()), LossForm::scaled);
}

TEST_F(LossForms, OfASumOrOfWhatTheProgramHasScaled) {
  EXPECT_EQ(form_of(x.sum()), LossForm::scaled);
  EXPECT_EQ(form_of(-x.sum() / 8), LossForm::scaled);
  EXPECT_EQ(form_of(x.mean() / 2), LossForm::scaled);
  EXPECT_EQ(form_of(x.narrow(0, 0, 1).narrow(1, 0, 1).sum() / 1), LossForm::scaled);
}

TEST_F(LossForms, OfWhatIsNotKnown) {
  EXPECT_EQ(form_of(x.mean().square()), LossForm::unknown);
  EXPECT_EQ(form_of(x.sum() / at::scalar_tensor(4)), LossForm::unknown);
}

}  // namespace
}  // namespace cohort::internal
