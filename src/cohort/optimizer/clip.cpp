// SPDX-License-Identifier: Apache-2.0

#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

// The elements of a sparse gradient are its rows.
at::Tensor elements_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._values() : gradient;
}

at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& scale) {
  const at::Tensor elements = at::mul(elements_of(gradient), scale);
  if (!gradient.is_sparse()) return elements;
  return at::_sparse_coo_tensor_unsafe(gradient._indices(), elements, gradient.sizes())
      ._coalesced_(true);
}

}  // namespace

ClippedGradients clip_by_global_norm(const std::vector<at::Tensor>& gradients, double max_norm) {
  COHORT_CHECK(std::isfinite(max_norm) && max_norm > 0.0, ErrorCode::invalid_argument,
               "[optimizer.clip] expected a finite max_norm > 0, got ", max_norm);
  ClippedGradients result;
  result.gradients = gradients;
  at::Tensor squares;
  for (at::Tensor& gradient : result.gradients) {
    if (!gradient.defined()) continue;
    // A row that is there several times counts once, as the sum.
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    const at::Tensor elements = elements_of(gradient);
    const at::Tensor square = at::sum(at::mul(elements, elements));
    squares = squares.defined() ? squares.add(square) : square;
  }
  if (!squares.defined()) {
    result.global_norm = at::zeros({});
    return result;
  }
  result.global_norm = squares.sqrt();
  const at::Tensor scale = result.global_norm.clamp_min(max_norm).reciprocal().mul(max_norm);
  for (at::Tensor& gradient : result.gradients) {
    if (gradient.defined()) gradient = scaled(gradient, scale);
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
