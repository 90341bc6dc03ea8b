// SPDX-License-Identifier: Apache-2.0
// Gradient clipping that uses only tensor operators, so that it can be part of a traced step
// (torch::nn::utils::clip_grad_norm_ reads the norm on the host).
//
//   auto gradients = optimizer.compute_gradients(loss);
//   optimizer.apply_gradients(cohort::clip_by_global_norm(gradients, 1.0));
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Each gradient g becomes g * max_norm / max(global_norm, max_norm), where global_norm is the norm
// of all gradients together, a 0-dim tensor (tf.clip_by_global_norm). Undefined gradients stay
// undefined; if the norm is not finite, the result is NaN.
struct ClippedGradients {
  std::vector<at::Tensor> gradients;
  at::Tensor global_norm;
};
COHORT_API ClippedGradients clip_by_global_norm(const std::vector<at::Tensor>& gradients,
                                                double max_norm);

// The same for the result of compute_gradients().
COHORT_API std::vector<std::pair<at::Tensor, Variable>> clip_by_global_norm(
    std::vector<std::pair<at::Tensor, Variable>> gradients, double max_norm);

}  // namespace cohort
