// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/learning_rate_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/variable/update_rule.h"

namespace cohort {
namespace {

void check_steps(std::string_view where, std::string_view name, std::int64_t steps,
                 std::int64_t least) {
  COHORT_CHECK(steps >= least, ErrorCode::invalid_argument, "[", where, "] expected ", name,
               " >= ", least, ", got ", steps, "; set .", name);
}

LearningRateSchedule::Function exponential_decay(const ExponentialDecayOptions& options) {
  constexpr std::string_view kWhere = "optimizer.exponential_decay";
  variable::check_hyperparameter_range(variable::HyperparameterRange::positive, kWhere,
                                       "initial_learning_rate", options.initial_learning_rate);
  check_steps(kWhere, "decay_steps", options.decay_steps, 1);
  variable::check_hyperparameter_range(variable::HyperparameterRange::positive, kWhere,
                                       "decay_rate", options.decay_rate);
  return [options](std::int64_t step) {
    double periods = static_cast<double>(step) / static_cast<double>(options.decay_steps);
    if (options.staircase) periods = std::floor(periods);
    return options.initial_learning_rate * std::pow(options.decay_rate, periods);
  };
}

LearningRateSchedule::Function cosine_decay(const CosineDecayOptions& options) {
  constexpr std::string_view kWhere = "optimizer.cosine_decay";
  variable::check_hyperparameter_range(variable::HyperparameterRange::positive, kWhere,
                                       "initial_learning_rate", options.initial_learning_rate);
  check_steps(kWhere, "decay_steps", options.decay_steps, 1);
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, kWhere, "alpha",
                                       options.alpha);
  return [options](std::int64_t step) {
    const double part = static_cast<double>(std::min(step, options.decay_steps)) /
                        static_cast<double>(options.decay_steps);
    const double cosine = 0.5 * (1.0 + std::cos(std::numbers::pi * part));
    return options.initial_learning_rate * ((1.0 - options.alpha) * cosine + options.alpha);
  };
}

LearningRateSchedule::Function piecewise_constant_decay(PiecewiseConstantDecayOptions options) {
  constexpr std::string_view kWhere = "optimizer.piecewise_constant_decay";
  const auto& boundaries = options.boundaries;
  COHORT_CHECK(options.values.size() == boundaries.size() + 1, ErrorCode::invalid_argument, "[",
               kWhere, "] expected one more of values than of boundaries, got ",
               options.values.size(), " values and ", boundaries.size(), " boundaries");
  for (std::size_t i = 1; i < boundaries.size(); ++i) {
    COHORT_CHECK(boundaries[i - 1] < boundaries[i], ErrorCode::invalid_argument, "[", kWhere,
                 "] expected ascending boundaries, got ", boundaries[i - 1], " before ",
                 boundaries[i]);
  }
  for (const double value : options.values)
    variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, kWhere,
                                         "values", value);
  return [options = std::move(options)](std::int64_t step) {
    const auto next = std::lower_bound(options.boundaries.begin(), options.boundaries.end(), step);
    return options.values[static_cast<std::size_t>(next - options.boundaries.begin())];
  };
}

LearningRateSchedule::Function linear_warmup(const LinearWarmupOptions& options) {
  constexpr std::string_view kWhere = "optimizer.linear_warmup";
  check_steps(kWhere, "warmup_steps", options.warmup_steps, 0);
  variable::check_hyperparameter_range(variable::HyperparameterRange::not_negative, kWhere,
                                       "initial_learning_rate", options.initial_learning_rate);
  const double target = options.after_warmup(0);
  variable::check_hyperparameter_range(variable::HyperparameterRange::positive, kWhere,
                                       "after_warmup", target, " as its first rate");
  return [options, target](std::int64_t step) {
    if (step >= options.warmup_steps) return options.after_warmup(step - options.warmup_steps);
    const double part = static_cast<double>(step) / static_cast<double>(options.warmup_steps);
    return options.initial_learning_rate + (target - options.initial_learning_rate) * part;
  };
}

}  // namespace

ExponentialDecay::ExponentialDecay(const ExponentialDecayOptions& options)
    : LearningRateSchedule(exponential_decay(options)) {}

CosineDecay::CosineDecay(const CosineDecayOptions& options)
    : LearningRateSchedule(cosine_decay(options)) {}

PiecewiseConstantDecay::PiecewiseConstantDecay(PiecewiseConstantDecayOptions options)
    : LearningRateSchedule(piecewise_constant_decay(std::move(options))) {}

LinearWarmup::LinearWarmup(const LinearWarmupOptions& options)
    : LearningRateSchedule(linear_warmup(options)) {}

}  // namespace cohort
