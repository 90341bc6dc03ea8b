// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class RmspropTest : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  static auto making(RMSpropOptions options) {
    return [options] { RMSprop({local_variable("w", scalar(1))}, options); };
  }
};

TEST_F(RmspropTest, DividesByTheRootOfTheMeanSquareThatStartsAtOne) {
  const Variable variable = local_variable("w", scalar(1));
  const RMSprop rmsprop({variable}, {.learning_rate = 0.5, .decay = 0.75, .epsilon = 0.5});
  rmsprop.apply_gradients({{scalar(2), variable}});
  EXPECT_DOUBLE_EQ(variable.read().item<double>(), 1 - 0.5 * 2 / std::sqrt(0.75 + 0.25 * 4 + 0.5));
}

TEST_F(RmspropTest, HasTensorFlowsDefaults) {
  const RMSprop rmsprop({local_variable("w", scalar(1))});
  EXPECT_EQ(rmsprop.learning_rate(), 0.001);
  EXPECT_EQ(rmsprop.hyperparameter("decay"), 0.9);
  EXPECT_EQ(rmsprop.hyperparameter("epsilon"), 1e-10);
}

TEST_F(RmspropTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0"));
  EXPECT_THAT(making({.decay = 1}),
              throws_error(ErrorCode::invalid_argument, "expected decay in [0, 1), got 1"));
  EXPECT_THAT(making({.epsilon = 0}),
              throws_error(ErrorCode::invalid_argument, "expected a finite epsilon > 0"));
}

}  // namespace
}  // namespace cohort
