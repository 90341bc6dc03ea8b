// SPDX-License-Identifier: Apache-2.0
// Whether a loss is a mean over the rows of one replica, as far as its graph tells it.
#pragma once

#include <ATen/core/Tensor.h>

namespace cohort::internal {

enum class LossForm {
  // Something else is computed from the rows, so it may be a mean.
  unknown,
  // A sum that is not divided by the number of its own rows, which is a sum over the replicas
  // or a mean over the global batch; or a mean with a factor below 1, which may scale it.
  scaled,
  // A mean, after steps of which one may be wanted: -mean, 2 * mean, sum / (number of its rows).
  computed_mean,
  // A mean, or a sum with one among its last terms.
  mean,
};

// The form of a scalar: follows its graph from the end through sums, differences, and steps with
// numbers. Reads no tensor's values.
LossForm form_of(const at::Tensor& loss);

}  // namespace cohort::internal
