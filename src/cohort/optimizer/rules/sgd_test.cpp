// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class SGDTest : public ::testing::Test {
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

TEST_F(SGDTest, StepsAgainstTheGradient) {
  EXPECT_EQ(trained({.learning_rate = 0.5}, {2, 4}), 1 - 0.5 * (2 + 4));
}

TEST_F(SGDTest, MomentumAccumulatesGradients) {
  // a: 2, 0.5*2 + 4 = 5
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5}, {2, 4}), 1 - 0.5 * (2 + 5));
}

TEST_F(SGDTest, NesterovLooksAhead) {
  // a: 2, 5; steps: 2 + 0.5*2, 4 + 0.5*5
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5, .nesterov = true}, {2, 4}),
            1 - 0.5 * (3 + 6.5));
}

TEST_F(SGDTest, WeightDecayIsAddedToTheGradient) {
  // p: 1 - 0.5*(2 + 0.25*1) = -0.125
  EXPECT_EQ(trained({.learning_rate = 0.5, .weight_decay = 0.25}, {2}), -0.125);
  EXPECT_EQ(trained({.learning_rate = 0.5, .weight_decay = 0.25}, {2, 4}),
            -0.125 - 0.5 * (4 - 0.25 * 0.125));
}

TEST_F(SGDTest, WithMomentumTheDecayAccumulates) {
  // a: 2 + 0.25, 0.5*2.25 + 4 - 0.25*0.125
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5, .weight_decay = 0.25}, {2, 4}),
            -0.125 - 0.5 * (0.5 * 2.25 + 4 - 0.25 * 0.125));
}

TEST_F(SGDTest, TakesTheRuleThatTheOptionsAskFor) {
  const std::vector<Variable> variables{local_variable("w", scalar(1))};
  EXPECT_EQ(SGD(variables).rule().name(), "sgd");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9}).rule().name(), "momentum");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9, .nesterov = true}).rule().name(), "nesterov");
  EXPECT_EQ(SGD(variables, {.momentum = 0.9, .dampening = 0.5}).rule().name(), "dampened_momentum");
  EXPECT_EQ(SGD(variables, {.dampening = 0.5}).rule().name(), "sgd") << "no effect";
}

TEST_F(SGDTest, DampeningBeginsWithTheSecondGradient) {
  // b: 2, 0.5*2 + (1-0.25)*4 = 4
  EXPECT_EQ(trained({.learning_rate = 0.5, .momentum = 0.5, .dampening = 0.25}, {2, 4}),
            1 - 0.5 * (2 + 4));
}

// As in torch::optim::SGD: without momentum the buffer is not used.
TEST_F(SGDTest, WhileTheMomentumIsZeroTheBufferStays) {
  for (const double dampening : {0.0, 0.25}) {
    const Variable variable = local_variable("w", scalar(1));
    SGD sgd({variable}, {.learning_rate = 0.5, .momentum = 0.5, .dampening = dampening});
    const auto step = [&](double momentum, double gradient) {
      sgd.set_hyperparameter("momentum", momentum);
      sgd.apply_gradients({{scalar(gradient), variable}});
    };
    step(0.5, 2);  // b: 2
    step(0, 3);
    step(0.5, 4);  // b: 0.5*2 + (1 - dampening)*4
    EXPECT_EQ(variable.read().item<double>(), 1 - 0.5 * (2 + 3 + 0.5 * 2 + (1 - dampening) * 4));
  }
}

TEST_F(SGDTest, AnInfiniteValueWithoutDecayStays) {
  const Variable variable = local_variable("w", scalar(std::numeric_limits<double>::infinity()));
  SGD({variable}).apply_gradients({{scalar(1), variable}});
  EXPECT_TRUE(variable.read().isinf().item<bool>());
}

TEST_F(SGDTest, RefusesImpossibleOptions) {
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
  EXPECT_THAT(making({.momentum = 0.5, .dampening = 0.5, .nesterov = true}),
              throws_error(ErrorCode::invalid_argument,
                           "expected dampening 0 with nesterov, got 0.5; leave out one of them"));
  EXPECT_THAT(making({.dampening = -1}),
              throws_error(ErrorCode::invalid_argument, "expected a finite dampening >= 0"));
}

// set_hyperparameter() took what the constructor refuses.
TEST_F(SGDTest, WithNesterovTheMomentumStaysAboveZero) {
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
