// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/learning_rate_schedule.h"

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <stdexcept>

#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

TEST(LearningRateSchedules, AConstantStays) {
  const LearningRateSchedule constant = 0.5;
  EXPECT_EQ(constant(0), 0.5);
  EXPECT_EQ(constant(1'000'000), 0.5);
}

TEST(LearningRateSchedules, ExponentialDecayIsSmoothOrAStaircase) {
  ExponentialDecayOptions options{
      .initial_learning_rate = 0.5, .decay_steps = 10, .decay_rate = 0.25};
  const ExponentialDecay smooth(options);
  EXPECT_EQ(smooth(0), 0.5);
  EXPECT_DOUBLE_EQ(smooth(5), 0.5 * 0.5);
  EXPECT_DOUBLE_EQ(smooth(10), 0.5 * 0.25);
  options.staircase = true;
  const ExponentialDecay staircase(options);
  EXPECT_EQ(staircase(9), 0.5);
  EXPECT_EQ(staircase(10), 0.125);
  EXPECT_EQ(staircase(29), 0.5 * 0.25 * 0.25);
}

TEST(LearningRateSchedules, CosineDecayEndsAtAlphaAndStaysThere) {
  const CosineDecay decay({.initial_learning_rate = 0.5, .decay_steps = 100, .alpha = 0.25});
  EXPECT_EQ(decay(0), 0.5);
  EXPECT_DOUBLE_EQ(decay(50), 0.5 * (0.75 * 0.5 + 0.25));
  EXPECT_DOUBLE_EQ(decay(25), 0.5 * (0.75 * 0.5 * (1 + std::numbers::sqrt2 / 2) + 0.25));
  EXPECT_DOUBLE_EQ(decay(100), 0.125);
  EXPECT_EQ(decay(100'000), decay(100));
}

// A boundary is the last step of its rate, as in tf.keras.
TEST(LearningRateSchedules, PiecewiseConstantDecayChangesAfterItsBoundaries) {
  const PiecewiseConstantDecay decay({.boundaries = {10, 20}, .values = {1, 0.5, 0.25}});
  EXPECT_EQ(decay(0), 1);
  EXPECT_EQ(decay(10), 1);
  EXPECT_EQ(decay(11), 0.5);
  EXPECT_EQ(decay(20), 0.5);
  EXPECT_EQ(decay(21), 0.25);
}

TEST(LearningRateSchedules, LinearWarmupComesBeforeAnother) {
  const CosineDecay after({.initial_learning_rate = 0.5, .decay_steps = 100});
  const LinearWarmup warmup(
      {.warmup_steps = 4, .initial_learning_rate = 0.1, .after_warmup = after});
  EXPECT_EQ(warmup(0), 0.1);
  EXPECT_DOUBLE_EQ(warmup(1), 0.2);
  EXPECT_DOUBLE_EQ(warmup(3), 0.4);
  EXPECT_EQ(warmup(4), 0.5);
  EXPECT_EQ(warmup(54), after(50));
  const LinearWarmup twice({.warmup_steps = 2, .after_warmup = warmup});
  EXPECT_DOUBLE_EQ(twice(1), 0.05);
  EXPECT_DOUBLE_EQ(twice(3), 0.2);
  EXPECT_EQ(LinearWarmup({.warmup_steps = 0, .after_warmup = after})(50), after(50));
}

// A required option that was left out is refused.
TEST(LearningRateSchedules, RefuseImpossibleOptions) {
  const auto refused = [](const char* text) {
    return throws_error(ErrorCode::invalid_argument, text);
  };
  EXPECT_THAT([] { ExponentialDecay({.decay_steps = 1, .decay_rate = 0.5}); },
              refused("[optimizer.exponential_decay] expected a finite initial_learning_rate > 0, "
                      "got 0"));
  EXPECT_THAT([] { ExponentialDecay({.initial_learning_rate = 1, .decay_rate = 0.5}); },
              refused("expected decay_steps >= 1, got 0; set .decay_steps"));
  EXPECT_THAT([] { ExponentialDecay({.initial_learning_rate = 1, .decay_steps = 1}); },
              refused("expected a finite decay_rate > 0, got 0"));
  EXPECT_THAT([] { CosineDecay({.initial_learning_rate = 1, .decay_steps = 1, .alpha = -1}); },
              refused("[optimizer.cosine_decay] expected a finite alpha >= 0, got -1"));
  EXPECT_THAT([] { PiecewiseConstantDecay({.boundaries = {1}, .values = {1}}); },
              refused("expected one more of values than of boundaries, got 1 values and 1 "
                      "boundaries"));
  EXPECT_THAT(
      [] {
        PiecewiseConstantDecay({.boundaries = {2, 2}, .values = {1, 1, 1}});
      },
      refused("expected ascending boundaries, got 2 before 2"));
  EXPECT_THAT([] { PiecewiseConstantDecay({.values = {-1}}); },
              refused("expected a finite values >= 0, got -1"));
  EXPECT_THAT([] { LinearWarmup({.after_warmup = 0.1}); },
              refused("expected warmup_steps >= 0, got -1; set .warmup_steps"));
  EXPECT_THAT([] { LinearWarmup({.warmup_steps = 1}); },
              refused("expected a finite after_warmup > 0, got 0 as its first rate"));
}

class ScheduledOptimizer : public ::testing::Test {
 protected:
  static at::Tensor scalar(double value) {
    return at::full({}, value, at::TensorOptions(at::kDouble));
  }
  // How much one more update with a gradient of 1 changes the variable.
  double update() {
    const double before = w.read().item<double>();
    sgd.apply_gradients({{scalar(1), w}});
    return before - w.read().item<double>();
  }
  const Variable w = local_variable("w", scalar(0));
  // 1, 1/2, 1/4, …
  SGD sgd{{w},
          {.learning_rate = ExponentialDecay(
               {.initial_learning_rate = 1, .decay_steps = 1, .decay_rate = 0.5})}};
};

TEST_F(ScheduledOptimizer, TakesTheNextRateForEachUpdate) {
  EXPECT_EQ(sgd.learning_rate(), 1);
  for (const double rate : {1.0, 0.5, 0.25}) EXPECT_EQ(update(), rate);
  EXPECT_EQ(sgd.iterations(), 3);
  EXPECT_EQ(sgd.learning_rate(), 0.125);
}

TEST_F(ScheduledOptimizer, ResumesAtAnIteration) {
  sgd.set_iterations(3);
  EXPECT_EQ(update(), 0.125);
  EXPECT_EQ(sgd.iterations(), 4);
  EXPECT_THAT([&] { sgd.set_iterations(-1); },
              throws_error(ErrorCode::invalid_argument,
                           "[optimizer.sgd] expected iterations >= 0, got -1"));
}

TEST_F(ScheduledOptimizer, TakesAnotherScheduleOrANumber) {
  update();
  sgd.set_learning_rate(PiecewiseConstantDecay({.boundaries = {1}, .values = {4, 2}}));
  EXPECT_EQ(update(), 4);
  EXPECT_EQ(update(), 2);
  sgd.set_learning_rate(8);
  EXPECT_EQ(update(), 8);
  sgd.set_hyperparameter("learning_rate", 16);
  EXPECT_EQ(update(), 16);
  EXPECT_EQ(sgd.iterations(), 5);
  EXPECT_THAT([&] { sgd.set_learning_rate(-1); },
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0, got -1"));
}

TEST_F(ScheduledOptimizer, TakesAFunctionOfOnesOwn) {
  SGD own({w}, {.learning_rate = [](std::int64_t step) { return step == 0 ? 3.0 : 5.0; }});
  own.apply_gradients({{scalar(1), w}});
  EXPECT_EQ(own.learning_rate(), 5);
  EXPECT_THAT([&] { own.set_learning_rate(LearningRateSchedule::Function()); },
              ::testing::Throws<std::bad_function_call>());
}

// The updates before it are made and counted once.
TEST_F(ScheduledOptimizer, ThrowsWhatItsFunctionThrowsForTheUpdateThatNeedsTheValue) {
  sgd.set_learning_rate([](std::int64_t step) {
    if (step == 1) throw std::runtime_error("no rate for step 1");
    return 0.5;
  });
  EXPECT_EQ(update(), 0.5);
  EXPECT_THAT([&] { update(); }, throws_error(ErrorCode::unknown, "no rate for step 1"));
  EXPECT_EQ(sgd.iterations(), 1);
  sgd.set_iterations(2);
  EXPECT_EQ(update(), 0.5);
}

// 2^t is infinite from step 1024 on.
TEST_F(ScheduledOptimizer, AValueOutsideTheRangeIsRefusedBeforeTheUpdate) {
  sgd.set_learning_rate(
      ExponentialDecay({.initial_learning_rate = 1, .decay_steps = 1, .decay_rate = 2}));
  sgd.set_iterations(2000);
  EXPECT_THAT([&] { update(); },
              throws_error(ErrorCode::invalid_argument, "finite learning_rate >= 0, got inf"));
  EXPECT_EQ(sgd.iterations(), 2000);
}

TEST_F(ScheduledOptimizer, ACopyIsTheSameOptimizer) {
  const SGD copy = sgd;
  update();
  EXPECT_EQ(copy.iterations(), 1);
  EXPECT_EQ(copy.learning_rate(), 0.5);
}

}  // namespace
}  // namespace cohort
