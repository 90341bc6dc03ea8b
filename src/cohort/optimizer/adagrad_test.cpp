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
  EXPECT_DOUBLE_EQ(variable.read().item<double>(), 1 - 0.5 * 2 / std::sqrt(0.25 + 4));
}

TEST_F(AdagradTest, HasTensorFlowsDefaults) {
  const Adagrad adagrad({local_variable("w", scalar(1))});
  EXPECT_EQ(adagrad.learning_rate(), 0.001);
  EXPECT_EQ(adagrad.hyperparameter("initial_accumulator"), 0.1);
}

TEST_F(AdagradTest, RefusesImpossibleOptions) {
  EXPECT_THAT(making({.learning_rate = -1}),
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0"));
  EXPECT_THAT(making({.initial_accumulator = 0}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.adagrad] expected a finite initial_accumulator > 0"));
}

}  // namespace
}  // namespace cohort
