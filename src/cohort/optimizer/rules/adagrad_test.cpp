// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class AdagradTest : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  static auto making(AdagradOptions options) {
    return [options] { Adagrad({local_variable("w", scalar(1))}, options); };
  }
};

TEST_F(AdagradTest, DividesByTheRootOfTheSummedSquares) {
  const Variable variable = local_variable("w", scalar(1));
  const Adagrad adagrad({variable}, {.learning_rate = 0.5, .initial_accumulator = 0.25});
  adagrad.apply_gradients({{scalar(2), variable}});
  EXPECT_DOUBLE_EQ(variable.read().item<double>(), 1 - 0.5 * 2 / (std::sqrt(0.25 + 4) + 1e-10));
}

// Regression: it started at TensorFlow's 0.1, and learned far slower than torch::optim's.
TEST_F(AdagradTest, TheFirstStepIsOneLearningRateLong) {
  const Variable variable = local_variable("w", scalar(1));
  Adagrad({variable}, {.learning_rate = 0.5}).apply_gradients({{scalar(0.001), variable}});
  EXPECT_NEAR(variable.read().item<double>(), 0.5, 1e-6);
}

TEST_F(AdagradTest, TheRateDecaysWithTheSteps) {
  const Variable variable = local_variable("w", scalar(1));
  const Adagrad adagrad({variable}, {.learning_rate = 0.5, .lr_decay = 1, .eps = 0});
  for (int i = 0; i < 2; ++i) adagrad.apply_gradients({{scalar(2), variable}});
  EXPECT_DOUBLE_EQ(variable.read().item<double>(), 1 - 0.5 - 0.25 * 2 / std::sqrt(8));
}

TEST_F(AdagradTest, WithTensorFlowsFormulaHasItsDefaults) {
  const Adagrad adagrad({local_variable("w", scalar(1))},
                        {.formula = OptimizerFormula::tensorflow});
  EXPECT_EQ(adagrad.rule().name(), "tensorflow_adagrad");
  EXPECT_EQ(adagrad.learning_rate(), 0.001);
  EXPECT_EQ(adagrad.hyperparameter("initial_accumulator"), 0.1);
}

TEST_F(AdagradTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0"));
  EXPECT_THAT(making({.initial_accumulator = -1}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.adagrad] expected a finite initial_accumulator >= 0"));
  EXPECT_THAT(making({.initial_accumulator = 0, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::invalid_argument, "finite initial_accumulator > 0"));
  EXPECT_THAT(making({.eps = 1e-10, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::unimplemented, "[optimizer.adagrad] expected no eps with"));
}

}  // namespace
}  // namespace cohort
