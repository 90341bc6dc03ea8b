// SPDX-License-Identifier: Apache-2.0
// Learning rates that depend on the number of updates (tf.keras.optimizers.schedules).
//
//   cohort::CosineDecay decay({.initial_learning_rate = 1e-3, .decay_steps = 10'000});
//   cohort::Adam optimizer(model.parameters(), {.learning_rate = decay});
//   cohort::Adam warm(model.parameters(),
//                     {.learning_rate = cohort::LinearWarmup({.warmup_steps = 500,
//                                                             .after_warmup = decay})});
//
// The optimizer evaluates its schedule at the number of the update (Optimizer::iterations()), in
// the process of your program (for steps on parameter servers: the coordinator). A step gets the
// rate as an input, so a new rate needs no new trace.
//
// Equivalents in torch: StepLR(step_size, gamma) is ExponentialDecay with staircase (LibTorch's C++
// StepLR decays one step later than Python's, unless its step() is called once before the first
// update), ExponentialLR(gamma) is ExponentialDecay with decay_steps = 1, MultiStepLR is
// PiecewiseConstantDecay, CosineAnnealingLR is CosineDecay with alpha = eta_min / lr, and
// SequentialLR of LinearLR and a second schedule is LinearWarmup. Rates are float64; Keras computes
// them in float32.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// A constant, or a function of the step's number, which begins at 0. A value type; thread-safe if
// the function is. Any thread may call the function, including threads of the coordinator, and
// others wait meanwhile. So it must be quick and must not use the optimizer or the coordinator.
class COHORT_API LearningRateSchedule {
 public:
  using Function = std::function<double(std::int64_t step)>;
  LearningRateSchedule(double constant) : constant_(constant) {}  // NOLINT: options take numbers
  // A schedule of your own:
  //   .learning_rate = [](std::int64_t step) { return 0.1 * std::pow(0.99, step); }
  // If it throws, schedule(), Epoch::try_next() or apply_gradients() throws that exception.
  template <class F>
  requires(std::is_invocable_r_v<double, const F&, std::int64_t> &&
           !std::derived_from<F, LearningRateSchedule>)
      LearningRateSchedule(F function)  // NOLINT: options take functions
      : function_(std::move(function)) {}

  double operator()(std::int64_t step) const { return function_ ? (*function_)(step) : constant_; }
  bool is_constant() const { return !function_; }

 private:
  double constant_ = 0.0;
  std::optional<Function> function_;
};

struct ExponentialDecayOptions {
  double initial_learning_rate = 0.0;  // required, > 0
  std::int64_t decay_steps = 0;        // required, > 0
  double decay_rate = 0.0;             // required, > 0
  bool staircase = false;              // step / decay_steps is an integer division
};

// initial_learning_rate * decay_rate^(step / decay_steps).
// The constructor, like those of the other schedules, throws invalid_argument if an option is out
// of range.
class COHORT_API ExponentialDecay : public LearningRateSchedule {
 public:
  explicit ExponentialDecay(const ExponentialDecayOptions& options);
};

struct CosineDecayOptions {
  double initial_learning_rate = 0.0;  // required, > 0
  std::int64_t decay_steps = 0;        // required, > 0
  double alpha = 0.0;                  // the last rate as a fraction of the first one; >= 0
};

// initial_learning_rate * ((1 - alpha) * (1 + cos(pi * step / decay_steps)) / 2 + alpha) until
// decay_steps; after that the last rate.
class COHORT_API CosineDecay : public LearningRateSchedule {
 public:
  explicit CosineDecay(const CosineDecayOptions& options);
};

struct PiecewiseConstantDecayOptions {
  std::vector<std::int64_t> boundaries =
      {};                           // ascending; the last step of each rate except the last
  std::vector<double> values = {};  // one more than boundaries, >= 0
};

// values[0] while step <= boundaries[0], values[1] while step <= boundaries[1], …
class COHORT_API PiecewiseConstantDecay : public LearningRateSchedule {
 public:
  explicit PiecewiseConstantDecay(PiecewiseConstantDecayOptions options);
};

struct LinearWarmupOptions {
  std::int64_t warmup_steps = -1;           // required, >= 0; 0: none
  double initial_learning_rate = 0.0;       // the rate of step 0; >= 0
  LearningRateSchedule after_warmup = 0.0;  // required: its first rate is > 0
};

// Rises linearly from initial_learning_rate to the first rate of `after_warmup`, then follows that
// schedule, which gets step - warmup_steps. With a CosineDecay this is
// tf.keras.optimizers.schedules.CosineDecay with warmup_target and warmup_steps.
class COHORT_API LinearWarmup : public LearningRateSchedule {
 public:
  explicit LinearWarmup(const LinearWarmupOptions& options);
};

}  // namespace cohort
