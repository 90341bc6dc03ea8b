// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/torch_schedules.h"

#include <cmath>
#include <string>

#include "cohort/core/error.h"

namespace cohort::internal {
namespace {

double checked_rate(const LearningRateSchedule& schedule, std::int64_t step, std::size_t group) {
  double rate = 0.0;
  try {
    rate = schedule(step);
  } catch (...) {
    throw current_error().during("computing the learning rate of step " + std::to_string(step));
  }
  COHORT_CHECK(std::isfinite(rate) && rate >= 0.0, ErrorCode::invalid_argument,
               "[strategy.TorchOptimizer] expected a finite learning rate >= 0, got ", rate,
               " of step ", step, " (group ", group, "); correct the schedule");
  return rate;
}

}  // namespace

void TorchSchedules::set(const LearningRateSchedule& rate, std::optional<std::size_t> group,
                         std::size_t groups) {
  COHORT_CHECK(group.value_or(0) < groups, ErrorCode::invalid_argument,
               "[strategy.TorchOptimizer] expected the number of a group, below ", groups, ", got ",
               group.value_or(0), "; leave it out to set the learning rate of all groups");
  checked_rate(rate, iterations(), group.value_or(0));
  schedules_.resize(groups);
  for (std::size_t i = 0; i < groups; ++i)
    if (i == group.value_or(i)) schedules_[i] = rate;
}

std::optional<double> TorchSchedules::rate(std::size_t replica, std::size_t group) const {
  if (group >= schedules_.size() || !schedules_[group]) return std::nullopt;
  return checked_rate(*schedules_[group], counts_[replica].value, group);
}

}  // namespace cohort::internal
