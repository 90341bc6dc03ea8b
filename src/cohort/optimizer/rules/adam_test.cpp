// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class AdamTest : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  static auto making(AdamOptions options) {
    return [options] { Adam({local_variable("w", scalar(1))}, options); };
  }
};

// sqrt(1-b2)/(1-b1) * (1-b1)*g / (sqrt((1-b2)*g*g) + eps) is sign(g), were it not for epsilon.
TEST_F(AdamTest, TheFirstStepIsOneLearningRateLong) {
  const Variable variable = local_variable("w", scalar(1));
  const Adam adam({variable}, {.learning_rate = 0.125, .eps = 1e-15});
  adam.apply_gradients({{scalar(300), variable}});
  EXPECT_NEAR(variable.read().item<double>(), 1 - 0.125, 1e-12);
}

// Regression: torch's users got TensorFlow's epsilon, which is not bias-corrected.
TEST_F(AdamTest, EpsilonIsBiasCorrectedUnlessTheFormulaIsTensorFlows) {
  const auto after_a_step = [](OptimizerFormula formula) {
    const Variable variable = local_variable("w", scalar(0));
    const Adam adam(
        {variable},
        {.learning_rate = 1, .beta_1 = 0, .beta_2 = 0.75, .eps = 1, .formula = formula});
    adam.apply_gradients({{scalar(2), variable}});
    return variable.read().item<double>();
  };
  EXPECT_DOUBLE_EQ(after_a_step(OptimizerFormula::torch), -2.0 / (2 + 1));
  EXPECT_DOUBLE_EQ(after_a_step(OptimizerFormula::tensorflow), -0.5 * 2 / (1 + 1));
}

TEST_F(AdamTest, WithAmsgradTheLargestSquareStays) {
  const auto trained = [](bool amsgrad) {
    const Variable variable = local_variable("w", scalar(0));
    const Adam adam({variable},
                    {.learning_rate = 1, .beta_1 = 0, .beta_2 = 0.5, .eps = 0, .amsgrad = amsgrad});
    for (const double gradient : {8.0, 1.0}) adam.apply_gradients({{scalar(gradient), variable}});
    return variable.read().item<double>();
  };
  // squares: 32, then 16.5
  EXPECT_DOUBLE_EQ(trained(false), -1 - 1 / std::sqrt(16.5 / 0.75));
  EXPECT_DOUBLE_EQ(trained(true), -1 - 1 / std::sqrt(32 / 0.75));
}

TEST_F(AdamTest, CountsTheStepsOfAVariableInASlot) {
  const variable::UpdateRule& rule = optimizer::update_rule_of("adam");
  at::Tensor value = scalar(1);
  const std::array hyper{0.1, 0.9, 0.999, 1e-8, 0.0};
  auto slots = rule.create_slots(value, hyper);
  for (int i = 0; i < 3; ++i) rule.update(value, value, slots, scalar(1), hyper);
  EXPECT_EQ(rule.slot_names()[2], "step");
  EXPECT_EQ(slots[2].item<std::int64_t>(), 3);
}

TEST_F(AdamTest, WithTensorFlowsFormulaHasItsDefaults) {
  const Adam adam({local_variable("w", scalar(1))}, {.formula = OptimizerFormula::tensorflow});
  EXPECT_EQ(adam.rule().name(), "tensorflow_adam");
  EXPECT_EQ(adam.learning_rate(), 0.001);
  EXPECT_EQ(adam.hyperparameter("eps"), 1e-7);
}

TEST_F(AdamTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0"));
  EXPECT_THAT(making({.beta_1 = 1}),
              throws_error(ErrorCode::invalid_argument, "expected beta_1 in [0, 1), got 1"));
  EXPECT_THAT(making({.beta_2 = -0.5}),
              throws_error(ErrorCode::invalid_argument, "expected beta_2 in [0, 1)"));
  EXPECT_THAT(making({.eps = -1}),
              throws_error(ErrorCode::invalid_argument, "expected a finite eps >= 0"));
  EXPECT_THAT(making({.eps = 0, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::invalid_argument, "expected a finite eps > 0"));
  EXPECT_THAT(making({.amsgrad = true, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::unimplemented,
                           "[optimizer.adam] expected no amsgrad with "
                           "OptimizerFormula::tensorflow, whose rule has none; leave it out"));
}

}  // namespace
}  // namespace cohort
