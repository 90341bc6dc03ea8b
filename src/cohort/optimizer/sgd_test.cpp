// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class SgdTest : public ::testing::Test {
 protected:
  // The value of a variable that starts at 1 after a step with each of the gradients.
  static double trained(SGDOptions options, const std::vector<double>& gradients) {
    const Variable variable = local_variable("w", scalar(1));
    const SGD sgd({variable}, options);
    for (const double gradient : gradients) sgd.apply_gradients({{scalar(gradient), variable}});
    return variable.read().item<double>();
  }
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  static auto making(SGDOptions options) {
    return [options] { SGD({local_variable("w", scalar(1))}, options); };
  }
};

TEST_F(SgdTest, StepsAgainstTheGradient) {
  EXPECT_EQ(trained({.learning_rate = 0.5}, {2, 4}), 1 - 0.5 * (2 + 4));
}

TEST_F(SgdTest, MomentumAccumulatesGradients) {
  // a: 2, 0.5*2 + 4 = 5
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5}, {2, 4}), 1 - 0.5 * (2 + 5));
}

TEST_F(SgdTest, NesterovLooksAhead) {
  // a: 2, 5; steps: 2 + 0.5*2, 4 + 0.5*5
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5, .nesterov = true}, {2, 4}),
            1 - 0.5 * (3 + 6.5));
}

TEST_F(SgdTest, WeightDecayIsAddedToTheGradient) {
  // p: 1 - 0.5*(2 + 0.25*1) = -0.125
  EXPECT_EQ(trained({.learning_rate = 0.5, .weight_decay = 0.25}, {2}), -0.125);
  EXPECT_EQ(trained({.learning_rate = 0.5, .weight_decay = 0.25}, {2, 4}),
            -0.125 - 0.5 * (4 - 0.25 * 0.125));
}

TEST_F(SgdTest, WithMomentumTheDecayAccumulates) {
  // a: 2 + 0.25, 0.5*2.25 + 4 - 0.25*0.125
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5, .weight_decay = 0.25}, {2, 4}),
            -0.125 - 0.5 * (0.5 * 2.25 + 4 - 0.25 * 0.125));
}

TEST_F(SgdTest, TakesTheRuleThatTheOptionsAskFor) {
  const std::vector<Variable> variables{local_variable("w", scalar(1))};
  EXPECT_EQ(SGD(variables).rule().name(), "sgd");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9}).rule().name(), "momentum");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9, .nesterov = true}).rule().name(), "nesterov");
  EXPECT_EQ(SGD(variables, {.weight_decay = 0.1}).rule().name(), "sgd_weight_decay");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9, .weight_decay = 0.1}).rule().name(),
            "momentum_weight_decay");
}

TEST_F(SgdTest, HasTensorFlowsDefaults) {
  const SGD sgd({local_variable("w", scalar(1))});
  EXPECT_EQ(sgd.learning_rate(), 0.01);
}

TEST_F(SgdTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.sgd] expected a finite learning_rate >= 0, got -1"));
  EXPECT_THAT(making({.momentum = 1}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.sgd] expected momentum in [0, 1), got 1"));
  EXPECT_THAT(making({.weight_decay = -1}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.sgd] expected a finite weight_decay >= 0, got -1"));
  EXPECT_THAT(making({.nesterov = true}),
              throws_error(ErrorCode::invalid_argument,
                           "expected momentum > 0 with nesterov, got 0; set .momentum"));
}

// set_hyperparameter() took what the constructor refuses.
TEST_F(SgdTest, WithNesterovTheMomentumStaysAboveZero) {
  SGD nesterov({local_variable("w", scalar(1))}, {.momentum = 0.9, .nesterov = true});
  EXPECT_THAT([&] { nesterov.set_hyperparameter("momentum", 0); },
              throws_error(ErrorCode::invalid_argument, "expected momentum in (0, 1), got 0"));
  EXPECT_EQ(nesterov.hyperparameter("momentum"), 0.9);
  SGD heavy({local_variable("w", scalar(1))}, {.momentum = 0.9});
  heavy.set_hyperparameter("momentum", 0);
  EXPECT_EQ(heavy.hyperparameter("momentum"), 0);
}

}  // namespace
}  // namespace cohort
