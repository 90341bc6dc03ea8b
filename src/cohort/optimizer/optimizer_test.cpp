// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>

#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class OptimizerTest : public ::testing::Test {
 protected:
  static Variable make(const std::string& name, double value, bool is_trainable = true) {
    return local_variable(name, filled(value), is_trainable);
  }
  static at::Tensor filled(double value) {
    return at::full({2}, value, at::TensorOptions(at::kDouble));
  }
  static double first(const Variable& variable) { return variable.read()[0].item<double>(); }
  // d(loss)/dw = 3, d(loss)/db = 1
  at::Tensor loss() const { return (weight_.tensor() * 3 + bias_.tensor()).sum(); }

  Variable weight_ = make("w", 1);
  Variable bias_ = make("b", 1);
  Variable unused_ = make("unused", 1);
  SGD sgd_{{weight_, bias_, unused_}, {.learning_rate = 0.5}};
};

TEST_F(OptimizerTest, MinimizeStepsEachVariableTheLossDependsOn) {
  sgd_.minimize(loss());
  EXPECT_EQ(first(weight_), 1 - 0.5 * 3);
  EXPECT_EQ(first(bias_), 1 - 0.5 * 1);
  EXPECT_EQ(first(unused_), 1);
}

TEST_F(OptimizerTest, ASecondMinimizeStartsFromFreshGradients) {
  sgd_.minimize(loss());
  sgd_.minimize(loss());
  EXPECT_EQ(first(weight_), 1 - 2 * 0.5 * 3);
  EXPECT_FALSE(weight_.tensor().grad().defined());
}

// Regression: the second optimizer failed with LibTorch's request to retain the graph.
TEST_F(OptimizerTest, TwoOptimizersShareALoss) {
  const SGD of_weight({weight_}, {.learning_rate = 0.5}), of_bias({bias_}, {.learning_rate = 0.25});
  const at::Tensor squares = (weight_.tensor() * bias_.tensor()).square().sum();
  const auto first_part = of_weight.compute_gradients(squares);
  of_bias.minimize(squares);
  of_weight.apply_gradients(first_part);
  EXPECT_EQ(first(weight_), 1 - 0.5 * 2);
  EXPECT_EQ(first(bias_), 1 - 0.25 * 2);
}

TEST_F(OptimizerTest, GradientsMayBeChangedBeforeTheyAreApplied) {
  auto gradients = sgd_.compute_gradients(loss());
  ASSERT_EQ(gradients.size(), 3U);
  EXPECT_FALSE(gradients[2].first.defined());
  gradients[0].first = gradients[0].first * 2;
  sgd_.apply_gradients(gradients);
  EXPECT_EQ(first(weight_), 1 - 0.5 * 6);
}

TEST_F(OptimizerTest, AGradientOfAnotherDtypeIsCast) {
  sgd_.apply_gradients({{filled(2).to(at::kFloat), weight_}});
  EXPECT_EQ(first(weight_), 1 - 0.5 * 2);
}

TEST_F(OptimizerTest, AGradientThatIsAViewIsApplied) {
  sgd_.apply_gradients({{at::full({1}, 2.0, at::TensorOptions(at::kDouble)).expand({2}), weight_}});
  EXPECT_EQ(first(weight_), 1 - 0.5 * 2);
}

TEST_F(OptimizerTest, TheLearningRateHoldsFromTheNextStepOn) {
  sgd_.set_learning_rate(0.25);
  sgd_.minimize(loss());
  EXPECT_EQ(sgd_.learning_rate(), 0.25);
  EXPECT_EQ(first(bias_), 1 - 0.25);
}

TEST_F(OptimizerTest, CopiesShareTheirHyperparameters) {
  Optimizer copy = sgd_;
  copy.set_learning_rate(0.125);
  EXPECT_EQ(sgd_.learning_rate(), 0.125);
}

TEST_F(OptimizerTest, NonTrainableVariablesAreLeftOut) {
  const Variable mean = make("mean", 1, false);
  const SGD sgd({weight_, mean}, {.learning_rate = 0.5});
  sgd.minimize((weight_.tensor() * mean.tensor()).sum());
  EXPECT_EQ(first(mean), 1);
  EXPECT_EQ(first(weight_), 0.5);
}

TEST_F(OptimizerTest, AFrozenVariableIsLeftAlone) {
  const at::Tensor frozen = bias_.tensor();
  frozen.set_requires_grad(false);
  sgd_.minimize(loss());
  EXPECT_EQ(first(bias_), 1);
  EXPECT_EQ(first(weight_), -0.5);
}

TEST_F(OptimizerTest, RefusesALossThatIsNoFloatingPointScalar) {
  // Regression: the message named average_loss(), which does not exist.
  EXPECT_THAT([&] { sgd_.minimize(weight_.tensor() * 2); },
              ::testing::Not(throws_error(ErrorCode::invalid_argument, "average_loss")));
  EXPECT_THAT([&] { sgd_.minimize(weight_.tensor() * 2); },
              throws_error(ErrorCode::invalid_argument, "got float64[2]; reduce it with mean()"));
  EXPECT_THAT(
      [&] { sgd_.minimize(loss().detach().to(at::kLong)); },
      throws_error(ErrorCode::invalid_argument, "floating-point scalar as loss, got int64[]"));
  EXPECT_THAT([&] { sgd_.minimize(at::Tensor()); },
              throws_error(ErrorCode::invalid_argument, "undefined"));
}

TEST_F(OptimizerTest, RefusesALossWithoutGradient) {
  const c10::NoGradGuard no_grad;
  EXPECT_THAT(
      [&] { sgd_.minimize(loss()); },
      throws_error(
          ErrorCode::invalid_argument,
          "expected a loss that depends on 'w', 'b', 'unused', got one without a gradient"));
}

// Regression: the remedy spoke of variables on servers, and no line of the program was named.
TEST_F(OptimizerTest, NamesWhatHasTakenTheGradientAndTheLine) {
  const auto refused = [&](const std::string& reason, const at::Tensor& loss) {
    for (const std::string& text : {reason, std::string("optimizer_test.cpp:")})
      EXPECT_THAT([&] { sgd_.minimize(loss); }, throws_error(ErrorCode::invalid_argument, text));
  };
  {
    const c10::InferenceMode guard;
    refused("a c10::InferenceMode is open here", loss());
  }
  {
    const c10::AutoGradMode guard(false);
    refused("a torch::NoGradGuard is open here", loss());
  }
  for (const Variable& variable : sgd_.variables()) variable.tensor().set_requires_grad(false);
  refused("requires_grad_(false) has frozen all of these", loss());
}

// Regression: a term of a loss that had read() in place of tensor() was not trained, without a
// word.
TEST_F(OptimizerTest, TrainsTermsOfValuesThatWereRead) {
  sgd_.minimize(loss() + weight_.read().sum() * 2);
  EXPECT_EQ(first(weight_), 1 - 0.5 * 5);
  sgd_.minimize(bias_.read().sum());
  EXPECT_EQ(first(bias_), 1 - 0.5 - 0.5);
}

// The message named the remedy, but not the cause.
TEST_F(OptimizerTest, RefusesALossOfCopiesAndNamesTensor) {
  EXPECT_THAT([&] { sgd_.minimize(weight_.read().detach().sum()); },
              throws_error(ErrorCode::invalid_argument,
                           "compute it in the same step from tensor() or read() of the variables, "
                           "with gradients enabled (no torch::NoGradGuard or c10::InferenceMode "
                           "around the forward pass) and nothing detached (outside of a step, "
                           "read() of a variable on a server gives a copy without a gradient)"));
}

TEST_F(OptimizerTest, RefusesALossOfOtherVariables) {
  const Variable other = make("other", 1);
  EXPECT_THAT([&] { sgd_.minimize(other.tensor().sum()); },
              throws_error(ErrorCode::invalid_argument,
                           "depends on none of them; was it computed with another model"));
}

TEST_F(OptimizerTest, RefusesToMinimizeWhenAllIsFrozen) {
  for (const Variable& variable : sgd_.variables()) variable.tensor().set_requires_grad(false);
  const Variable other = make("other", 1);
  EXPECT_THAT([&] { sgd_.minimize(other.tensor().sum()); },
              throws_error(ErrorCode::invalid_argument, "all frozen by requires_grad_(false)"));
}

TEST_F(OptimizerTest, AFailedApplyChangesNoVariable) {
  const at::Tensor wrong = at::full({3}, 1.0, at::TensorOptions(at::kDouble));
  EXPECT_THAT(
      [&] {
        sgd_.apply_gradients({{filled(1), weight_}, {wrong, bias_}});
      },
      throws_error(ErrorCode::invalid_argument,
                   "expected a gradient of float64[2], got float64[3]"));
  EXPECT_EQ(first(weight_), 1);
}

TEST_F(OptimizerTest, RefusesGradientsOfOtherVariablesAndOfNone) {
  EXPECT_THAT(
      [&] {
        sgd_.apply_gradients({{filled(1), make("other", 1)}});
      },
      throws_error(ErrorCode::invalid_argument, "variables of this optimizer, got 'other'"));
  EXPECT_THAT([&] { sgd_.apply_gradients({}); },
              throws_error(ErrorCode::invalid_argument, "none that is defined"));
  EXPECT_THAT(
      [&] {
        sgd_.apply_gradients({{at::Tensor(), weight_}});
      },
      throws_error(ErrorCode::invalid_argument, "none that is defined"));
}

// Regression: the second variable was updated with the first one's new value.
TEST_F(OptimizerTest, AGradientThatIsAViewOfAVariableIsReadBeforeItChanges) {
  const at::Tensor view = weight_.tensor().detach();
  sgd_.apply_gradients({{view, weight_}, {view, bias_}});
  EXPECT_EQ(first(weight_), 1 - 0.5 * 1);
  EXPECT_EQ(first(bias_), 1 - 0.5 * 1);
}

TEST_F(OptimizerTest, TakesTheMissingRowsOfASparseGradientForZeros) {
  sgd_.apply_gradients({{filled(1).to_sparse(), weight_}});
  EXPECT_EQ(first(weight_), 1 - 0.5 * 1);
  const Variable table = local_variable("table", at::ones({4, 2}).requires_grad_());
  const SGD sgd({table}, {.learning_rate = 0.5});
  const at::Tensor rows = at::tensor({2, 0, 2}, at::kLong);  // row 2 counts twice
  sgd.minimize(at::embedding(table.tensor(), rows, -1, false, /*sparse=*/true).sum());
  EXPECT_TRUE(at::equal(table.read().sum(1), at::tensor({1.0F, 2.0F, 0.0F, 2.0F})));
}

// Regression: LibTorch's to_dense() lost a gradient of one number.
TEST_F(OptimizerTest, ASparseGradientOfOneNumberIsApplied) {
  const Variable table = local_variable("table", at::ones({3, 1}).requires_grad_());
  const SGD sgd({table}, {.learning_rate = 1.0});
  const at::Tensor rows = at::tensor({1}, at::kLong);
  sgd.minimize(at::embedding(table.tensor(), rows, -1, false, /*sparse=*/true).sum() * 5);
  EXPECT_TRUE(at::equal(table.read().sum(1), at::tensor({1.0F, -4.0F, 1.0F})));
}

TEST_F(OptimizerTest, RefusesListsItCannotTrain) {
  EXPECT_THAT([] { SGD({}); },
              throws_error(ErrorCode::invalid_argument, "got an empty list; give it the model's"));
  EXPECT_THAT(
      [&] {
        SGD({weight_, bias_, weight_});
      },
      throws_error(ErrorCode::invalid_argument, "got 'w' twice"));
  EXPECT_THAT(
      [&] { SGD({make("mean", 1, false)}); },
      throws_error(ErrorCode::invalid_argument, "got only 'mean', which are not trainable"));
}

TEST_F(OptimizerTest, RefusesUnknownAndImpossibleHyperparameters) {
  EXPECT_THAT([&] { sgd_.hyperparameter("momentum"); },
              throws_error(ErrorCode::not_found,
                           "expected one of 'learning_rate', 'weight_decay', got 'momentum'"));
  // A misspelled name was refused without the right one.
  EXPECT_THAT([&] { sgd_.set_hyperparameter("learning_rat", 0.1); },
              throws_error(ErrorCode::not_found, "; did you mean 'learning_rate'?"));
  EXPECT_THAT([&] { sgd_.set_learning_rate(-1); },
              throws_error(ErrorCode::invalid_argument, "learning_rate >= 0"));
  EXPECT_THAT(
      [&] { sgd_.set_learning_rate(std::numeric_limits<double>::infinity()); },
      throws_error(ErrorCode::invalid_argument, "expected a finite learning_rate >= 0, got inf"));
  EXPECT_EQ(sgd_.learning_rate(), 0.5);
}

// Regression: set_hyperparameter() accepted values that no constructor accepts, and the next zero
// gradient made the weights NaN.
TEST_F(OptimizerTest, SettingTakesTheRangesOfTheConstructor) {
  Adam adam({weight_});
  const auto setting = [&](const char* name, double value) {
    return [&, name, value] { adam.set_hyperparameter(name, value); };
  };
  EXPECT_THAT(setting("eps", -1), throws_error(ErrorCode::invalid_argument, "eps >= 0"));
  EXPECT_THAT(setting("beta_1", 1),
              throws_error(ErrorCode::invalid_argument, "expected beta_1 in [0, 1), got 1"));
  EXPECT_THAT(setting("learning_rate", -1),
              throws_error(ErrorCode::invalid_argument, "learning_rate >= 0"));
  adam.set_hyperparameter("beta_1", 0);
  SGD momentum({weight_}, {.learning_rate = 1, .momentum = 0.5});
  EXPECT_THAT([&] { momentum.set_hyperparameter("momentum", 1); },
              throws_error(ErrorCode::invalid_argument, "expected momentum in [0, 1), got 1"));
  EXPECT_EQ(momentum.hyperparameter("momentum"), 0.5);
}

// Regression: the second optimizer inherited the moments and the step count of the first.
TEST_F(OptimizerTest, AnotherOptimizerOfOneRuleBeginsWithFreshSlots) {
  const auto moved = [&](const Optimizer& optimizer) {
    const double before = first(weight_);
    optimizer.minimize((weight_.tensor() * 3).sum());
    return first(weight_) - before;
  };
  const SGD one({weight_}, {.learning_rate = 1, .momentum = 0.5});
  EXPECT_EQ(moved(one), -3);
  EXPECT_EQ(moved(one), -4.5);
  const SGD other({weight_}, {.learning_rate = 1, .momentum = 0.5});
  EXPECT_EQ(moved(other), -3);
  const SGD copy = one;
  EXPECT_EQ(moved(copy), -5.25) << "copies are the same optimizer";
}

TEST_F(OptimizerTest, WithoutANameItHasThatOfItsRuleAndANumber) {
  const auto number_of = [](const std::string& name) {
    return name == "adam" ? 0 : std::stoi(name.substr(std::string("adam_").size()));
  };
  const int first_number = number_of(Adam({weight_}).name());
  const SGD between({weight_});
  EXPECT_EQ(Adam({weight_}, {.name = "mine"}).name(), "mine");
  EXPECT_EQ(number_of(Adam({bias_}).name()), first_number + 1);
  EXPECT_TRUE(SGD({weight_}, {.momentum = 0.5}).name().starts_with("momentum"));
}

// The slots were found by a number of the process, so none of a second start were found.
TEST_F(OptimizerTest, OneOfTheSameNameGoesOnWithTheSlots) {
  const auto step = [&](const std::string& name) {
    SGD({weight_}, {.learning_rate = 1, .momentum = 0.5, .name = name})
        .apply_gradients({{filled(1), weight_}});
    return first(weight_);
  };
  EXPECT_EQ(step("mine"), 0);
  EXPECT_EQ(step("mine"), 0 - 1.5);
  EXPECT_EQ(step("other"), -1.5 - 1);
  EXPECT_EQ(step("mine"), -2.5 - 1.75);
}

TEST_F(OptimizerTest, TwoAtTheSameTimeOfOneNameAreRefused) {
  auto first = std::make_unique<Adam>(std::vector{weight_, bias_}, AdamOptions{.name = "mine"});
  const auto second = [&] { return SGD({bias_}, {.name = "mine"}); };
  EXPECT_THAT(second, throws_error(ErrorCode::already_exists,
                                   "no other optimizer of variable 'b' has, got 'mine' (rule "
                                   "'sgd'), which is that of a living one (rule 'adam')"));
  EXPECT_EQ(SGD({unused_}, {.name = "mine"}).name(), "mine") << "of other variables";
  const Optimizer copy = *first;
  first.reset();
  EXPECT_THAT(second, throws_error(ErrorCode::already_exists, "'mine'"));
}

TEST_F(OptimizerTest, ANameIsFreeAfterTheOptimizersEndAndKeepsItsRule) {
  const auto make = [&] { return Adam({weight_}, {.name = "mine"}); };
  make().apply_gradients({{filled(1), weight_}});
  make().apply_gradients({{filled(1), weight_}});
  EXPECT_THAT(
      [&] {
        SGD({weight_}, {.name = "mine"}).apply_gradients({{filled(1), weight_}});
      },
      throws_error(ErrorCode::already_exists, "expected the rule 'adam' of optimizer 'mine'"));
}

}  // namespace
}  // namespace cohort
