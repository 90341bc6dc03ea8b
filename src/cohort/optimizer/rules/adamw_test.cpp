// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizers.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class AdamWTest : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  // The value of a variable that starts at 4 after a step with this gradient.
  template <class AnyOptimizer, class Options>
  static double after_one_step(Options options, double gradient) {
    const Variable variable = local_variable("w", scalar(4));
    AnyOptimizer({variable}, options).apply_gradients({{scalar(gradient), variable}});
    return variable.read().template item<double>();
  }
};

TEST_F(AdamWTest, DecaysTheValueByItsPartOfTheLearningRate) {
  EXPECT_EQ(after_one_step<AdamW>(AdamWOptions{.learning_rate = 0.5, .weight_decay = 0.25}, 0),
            4 * (1 - 0.5 * 0.25));
}

// As part of Adam's moments the decay would be normalised away: any decay would move p by one
// learning rate.
TEST_F(AdamWTest, DoesNotPutTheDecayIntoTheMoments) {
  const double rate = 0.5, decay = 0.25;
  const double adam = after_one_step<Adam>(AdamOptions{.learning_rate = rate}, 2);
  EXPECT_DOUBLE_EQ(
      after_one_step<AdamW>(AdamWOptions{.learning_rate = rate, .weight_decay = decay}, 2),
      adam - rate * decay * 4);
  EXPECT_NEAR(after_one_step<Adam>(AdamOptions{.learning_rate = rate, .weight_decay = decay}, 0),
              4 - rate, 1e-5);
}

TEST_F(AdamWTest, WithoutDecayIsAdam) {
  for (const double gradient : {-3.0, 0.125}) {
    EXPECT_EQ(after_one_step<AdamW>(AdamWOptions{.weight_decay = 0}, gradient),
              after_one_step<Adam>(AdamOptions{}, gradient));
  }
}

TEST_F(AdamWTest, WithTensorFlowsFormulaHasItsDefaults) {
  const AdamW adamw({local_variable("w", scalar(1))}, {.formula = OptimizerFormula::tensorflow});
  EXPECT_EQ(adamw.rule().name(), "tensorflow_adamw");
  EXPECT_EQ(adamw.hyperparameter("weight_decay"), 0.004);
  EXPECT_EQ(adamw.hyperparameter("eps"), 1e-7);
}

TEST_F(AdamWTest, RefusesImpossibleOptions) {
  const auto making = [](const AdamWOptions& options) {
    return [options] { AdamW({local_variable("w", scalar(1))}, options); };
  };
  EXPECT_THAT(making({.weight_decay = -0.5}),
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.adamw] expected a finite weight_decay >= 0, got -0.5"));
  EXPECT_THAT(making({.beta_1 = 1}),
              throws_error(ErrorCode::invalid_argument, "expected beta_1 in [0, 1), got 1"));
}

TEST_F(AdamWTest, OfAdamTheWeightDecayCanBeSetLater) {
  const std::vector<Variable> variables{local_variable("w", scalar(1))};
  Adam decaying(variables);
  decaying.set_hyperparameter("weight_decay", 0.25);
  EXPECT_EQ(decaying.hyperparameter("weight_decay"), 0.25);
  EXPECT_THAT([&] { Adam(variables, {.weight_decay = -1}); },
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.adam] expected a finite weight_decay >= 0, got -1"));
}

}  // namespace
}  // namespace cohort
