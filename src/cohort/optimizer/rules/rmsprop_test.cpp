// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class RMSpropTest : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  static auto making(RMSpropOptions options) {
    return [options] { RMSprop({local_variable("w", scalar(1))}, options); };
  }
};

// Regression: the mean square started at 1, and epsilon was under the root.
TEST_F(RMSpropTest, TheMeanSquareStartsAtZeroUnlessTheFormulaIsTensorFlows) {
  const auto after_a_step = [](OptimizerFormula formula) {
    const Variable variable = local_variable("w", scalar(1));
    const RMSprop rmsprop({variable},
                          {.learning_rate = 0.5, .alpha = 0.75, .eps = 0.5, .formula = formula});
    rmsprop.apply_gradients({{scalar(2), variable}});
    return variable.read().item<double>();
  };
  EXPECT_DOUBLE_EQ(after_a_step(OptimizerFormula::torch),
                   1 - 0.5 * 2 / (std::sqrt(0.25 * 4) + 0.5));
  EXPECT_DOUBLE_EQ(after_a_step(OptimizerFormula::tensorflow),
                   1 - 0.5 * 2 / std::sqrt(0.75 + 0.25 * 4 + 0.5));
}

// As in torch::optim::RMSprop: without momentum the buffer is not used.
TEST_F(RMSpropTest, WhileTheMomentumIsZeroTheBufferStays) {
  for (const bool centered : {false, true}) {
    const Variable variable = local_variable("w", scalar(1));
    RMSprop rmsprop(
        {variable},
        {.learning_rate = 1, .alpha = 0.0, .eps = 1, .momentum = 0.5, .centered = centered});
    const auto step = [&](double momentum) {
      rmsprop.set_hyperparameter("momentum", momentum);
      rmsprop.apply_gradients({{scalar(1), variable}});
    };
    for (const double momentum : {0.5, 0.0, 0.5}) step(momentum);
    const double each = centered ? 1 : 0.5;  // 1/(0 + 1) or 1/(1 + 1)
    EXPECT_DOUBLE_EQ(variable.read().item<double>(), 1 - each - each - (0.5 * each + each));
  }
}

TEST_F(RMSpropTest, WithTensorFlowsFormulaHasItsDefaults) {
  const RMSprop rmsprop({local_variable("w", scalar(1))},
                        {.formula = OptimizerFormula::tensorflow});
  EXPECT_EQ(rmsprop.rule().name(), "tensorflow_rmsprop");
  EXPECT_EQ(rmsprop.learning_rate(), 0.001);
  EXPECT_EQ(rmsprop.hyperparameter("alpha"), 0.9);
  EXPECT_EQ(rmsprop.hyperparameter("eps"), 1e-10);
}

TEST_F(RMSpropTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0"));
  EXPECT_THAT(making({.alpha = 1}),
              throws_error(ErrorCode::invalid_argument, "expected alpha in [0, 1), got 1"));
  EXPECT_THAT(making({.eps = -1}),
              throws_error(ErrorCode::invalid_argument, "expected a finite eps >= 0"));
  EXPECT_THAT(making({.momentum = -0.5}),
              throws_error(ErrorCode::invalid_argument, "expected momentum in [0, 1), got -0.5"));
  EXPECT_THAT(making({.momentum = 0.5, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::unimplemented, "expected no momentum with"));
  EXPECT_THAT(making({.centered = true, .formula = OptimizerFormula::tensorflow}),
              throws_error(ErrorCode::unimplemented, "expected no centered with"));
}

}  // namespace
}  // namespace cohort
