// SPDX-License-Identifier: Apache-2.0
// Groups of variables with a learning rate or a weight decay of their own.
#include "cohort/optimizer/parameter_groups.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/core/log.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/attached_states.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::throws_error;

class ParameterGroups : public ::testing::Test {
 protected:
  static Variable make(const std::string& name) {
    return local_variable(name, at::full({}, 1, at::TensorOptions(at::kDouble)));
  }
  static double value_of(const Variable& variable) { return variable.read().item<double>(); }
  // Every gradient is 1.
  void step(const Optimizer& optimizer) const {
    optimizer.minimize(weight_.tensor() + bias_.tensor() + scale_.tensor());
  }

  Variable weight_ = make("net/1.weight");
  Variable bias_ = make("net/1.bias");
  Variable scale_ = make("norm.scale");
  std::vector<Variable> all_{weight_, bias_, scale_};
};

TEST_F(ParameterGroups, EachVariableHasTheNumbersOfTheFirstGroupThatFits) {
  const SGD sgd(all_, {.learning_rate = 0.5,
                       .weight_decay = 1,
                       .groups = {{.pattern = "*.bias", .weight_decay = 0},
                                  {.pattern = "net/[1-3].*", .learning_rate = 0.25},
                                  {.pattern = "norm.scal?", .learning_rate_factor = 0.1}}});
  step(sgd);
  EXPECT_EQ(value_of(weight_), 1 - 0.25 * (1 + 1));
  EXPECT_EQ(value_of(bias_), 1 - 0.5);
  EXPECT_EQ(value_of(scale_), 1 - 0.5 * 0.1 * (1 + 1));
  EXPECT_EQ(sgd.hyperparameter("learning_rate", weight_), 0.25);
  EXPECT_EQ(sgd.hyperparameter("weight_decay", bias_), 0);
  EXPECT_EQ(sgd.hyperparameter("weight_decay", scale_), 1);
  EXPECT_EQ(sgd.iterations(), 1);
}

// A group without numbers of its own follows the optimizer's.
TEST_F(ParameterGroups, FollowSchedulesAndSettings) {
  SGD sgd(all_, {.learning_rate = [](std::int64_t step) { return step < 1 ? 0.5 : 0.25; },
                 .groups = {{.pattern = "*bias", .learning_rate_factor = 0.5},
                            {.pattern = "*scale", .learning_rate = [](std::int64_t step) {
                               return 1.0 / static_cast<double>(step + 1);
                             }}}});
  step(sgd);
  EXPECT_EQ(value_of(weight_), 1 - 0.5);
  EXPECT_EQ(value_of(bias_), 1 - 0.25);
  EXPECT_EQ(value_of(scale_), 0);
  step(sgd);
  EXPECT_EQ(value_of(weight_), 0.25);
  EXPECT_EQ(value_of(bias_), 1 - 0.25 - 0.125);
  EXPECT_EQ(value_of(scale_), -0.5);
  sgd.set_learning_rate(1);
  sgd.set_hyperparameter("weight_decay", 0.5);
  EXPECT_EQ(sgd.hyperparameter("learning_rate", bias_), 0.5);
  EXPECT_EQ(sgd.hyperparameter("weight_decay", bias_), 0.5);
  EXPECT_EQ(sgd.hyperparameter("learning_rate", scale_), 1.0 / 3);
}

TEST_F(ParameterGroups, ASlotOfEachVariableKnowsOnlyItsNumbers) {
  const Adagrad adagrad(all_, {.learning_rate = 0.5,
                               .lr_decay = 1,
                               .groups = {{.pattern = "*bias", .learning_rate_factor = 2}}});
  step(adagrad);
  step(adagrad);
  EXPECT_NEAR(value_of(weight_), 1 - 0.5 - 0.25 / std::sqrt(2), 1e-9);
  EXPECT_NEAR(value_of(bias_), 1 - 1 - 0.5 / std::sqrt(2), 1e-9);
}

TEST_F(ParameterGroups, AScheduleThatThrowsOrIsNegativeStopsTheWholeUpdate) {
  SGD sgd({weight_, bias_},
          {.groups = {{.pattern = "*bias", .learning_rate = [](std::int64_t step) -> double {
                         if (step == 1) throw std::runtime_error("no rate");
                         return step == 2 ? -1 : 0.5;
                       }}}});
  step(sgd);
  const double before = value_of(weight_);
  EXPECT_THAT([&] { step(sgd); }, throws_error(ErrorCode::unknown, "no rate"));
  sgd.set_iterations(2);
  EXPECT_THAT([&] { step(sgd); },
              throws_error(ErrorCode::invalid_argument, "learning_rate >= 0, got -1"));
  EXPECT_EQ(value_of(weight_), before);
}

TEST_F(ParameterGroups, RefuseWhatTheyCannotBe) {
  const auto refusal = [&](ParameterGroup group) {
    return [this, group = std::move(group)] { SGD(all_, {.groups = {group}}); };
  };
  constexpr ErrorCode kBad = ErrorCode::invalid_argument;
  EXPECT_THAT(refusal({.pattern = "*.biases"}),
              throws_error(kBad, "the group '*.biases', which fits none of 'net/1.weight'"));
  EXPECT_THAT(refusal({.weight_decay = 0}), throws_error(kBad, "got an empty one"));
  EXPECT_THAT(refusal({.pattern = "*", .weight_decay = -1}),
              throws_error(kBad, "weight_decay >= 0, got -1 (group '*')"));
  EXPECT_THAT(refusal({.pattern = "*", .learning_rate = -1}), throws_error(kBad, "(group '*')"));
  EXPECT_THAT(
      refusal({.pattern = "*", .learning_rate_factor = std::numeric_limits<double>::quiet_NaN()}),
      throws_error(kBad, "learning_rate_factor"));
  EXPECT_THAT(refusal({.pattern = "*", .learning_rate = 1, .learning_rate_factor = 2}),
              throws_error(kBad, "got both (2)"));
  const AdagradOptions without_decay{.formula = OptimizerFormula::tensorflow,
                                     .groups = {{.pattern = "*", .weight_decay = 0}}};
  EXPECT_THAT([&] { Adagrad(all_, without_decay); },
              throws_error(kBad, "expected a rule that has a weight_decay"));
  EXPECT_THAT([&] { SGD({weight_}).hyperparameter("learning_rate", bias_); },
              throws_error(kBad, "got 'net/1.bias'"));
}

// The groups are the program's, as a schedule is; other ones of a saved state are told.
TEST_F(ParameterGroups, AreComparedWithThoseOfASavedState) {
  const auto state_of = [](const Optimizer& optimizer) {
    const auto states = optimizer.variables().front().impl()->home()->attached_states();
    for (const auto& state : states)
      if (state->id().name == optimizer.name()) return state;
    return std::shared_ptr<AttachedState>();
  };
  Bytes with_groups, without;
  {
    const SGD sgd(all_, {.name = "saved", .groups = {{.pattern = "*bias", .weight_decay = 0.5}}});
    step(sgd);
    with_groups = state_of(sgd)->save();
  }
  {
    const SGD sgd(all_, {.name = "saved"});
    without = state_of(sgd)->save();
    state_of(sgd)->load(with_groups);
    EXPECT_EQ(sgd.iterations(), 1);
  }
  const SGD sgd(all_, {.name = "saved", .groups = {{.pattern = "*bias", .weight_decay = 0.5}}});
  state_of(sgd)->load(with_groups);
  EXPECT_EQ(sgd.iterations(), 1);
  state_of(sgd)->load(without);
  EXPECT_EQ(sgd.hyperparameter("weight_decay", bias_), 0.5);
}

}  // namespace
}  // namespace cohort
