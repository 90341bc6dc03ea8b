// SPDX-License-Identifier: Apache-2.0

#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/detail/replica_count.h"
#include "cohort/variable/detail/variable_home.h"

namespace cohort {

ClippedGradients clip_by_global_norm(const std::vector<at::Tensor>& gradients, double max_norm) {
  COHORT_CHECK(std::isfinite(max_norm) && max_norm > 0.0, ErrorCode::invalid_argument,
               "[optimizer.clip] expected a finite max_norm > 0, got ", max_norm);
  at::Tensor squares;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    const at::Tensor square = at::sum(at::mul(gradient, gradient));
    squares = squares.defined() ? squares.add(square) : square;
  }
  ClippedGradients result;
  result.gradients = gradients;
  if (!squares.defined()) {
    result.global_norm = at::zeros({});
    return result;
  }
  result.global_norm = squares.sqrt();
  const at::Tensor scale = result.global_norm.clamp_min(max_norm).reciprocal().mul(max_norm);
  for (at::Tensor& gradient : result.gradients) {
    if (gradient.defined()) gradient = at::mul(gradient, scale);
  }
  return result;
}

std::vector<std::pair<at::Tensor, Variable>> clip_by_global_norm(
    std::vector<std::pair<at::Tensor, Variable>> gradients, double max_norm) {
  std::vector<Update> own;
  own.reserve(gradients.size());
  for (const auto& [gradient, variable] : gradients) own.push_back({variable, gradient});
  ClippedGradients clipped =
      clip_by_global_norm(sum_over_replicas(own, "optimizer.clip_by_global_norm"), max_norm);
  // apply_gradients() adds up what the replicas give it.
  const int replicas = variable::ReplicaCount::current();
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    at::Tensor& gradient = clipped.gradients[i];
    if (replicas > 1 && gradient.defined()) gradient = at::div(gradient, replicas);
    gradients[i].first = std::move(gradient);
  }
  return gradients;
}

}  // namespace cohort
