// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/sub.h>

namespace cohort::function {

// One update of a running average.
struct AverageStep {
  at::Tensor old;
  at::Tensor value;
  double momentum = 0;
  bool is_variance = false;
};

// The statistic that the average was moved towards. Computed in float64, where rounding is
// negligible; a variance is clamped, because it might still be just below zero.
inline at::Tensor statistic_of(const AverageStep& step) {
  const at::Tensor old = step.old.to(at::kDouble);
  at::Tensor statistic = step.value.to(at::kDouble).sub(old).div_(step.momentum).add_(old);
  if (step.is_variance) statistic.clamp_min_(0);
  return statistic.to(step.value.scalar_type());
}

}  // namespace cohort::function
