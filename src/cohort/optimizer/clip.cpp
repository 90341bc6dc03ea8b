// SPDX-License-Identifier: Apache-2.0

#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/div.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

// The elements of a sparse gradient are its rows.
at::Tensor elements_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._values() : gradient;
}

at::Tensor scaled(const at::Tensor& gradient, const at::Tensor& scale) {
  // A 0-dim factor leaves the dtype of the gradient.
  const at::Tensor elements = at::mul(elements_of(gradient), scale);
  if (!gradient.is_sparse()) return elements;
  return at::_sparse_coo_tensor_unsafe(gradient._indices(), elements, gradient.sizes())
      ._coalesced_(true);
}

// The squares of half precision would overflow above 255.
at::Tensor sum_of_squares(const at::Tensor& gradient) {
  at::Tensor elements = elements_of(gradient);
  const at::ScalarType type = elements.scalar_type();
  if (type == at::kHalf || type == at::kBFloat16) elements = elements.to(at::kFloat);
  return at::sum(at::mul(elements, elements));
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
    const bool is_traced = function::Trace::current() != nullptr;
    if (gradient.is_sparse() && is_traced) gradient = variable::dense_of(gradient);
    if (gradient.is_sparse()) gradient = gradient.coalesce();
    const at::Tensor square = sum_of_squares(gradient);
    squares = squares.defined() ? squares.add(square) : square;
  }
  if (!squares.defined()) {
    result.global_norm = at::zeros({});
    return result;
  }
  result.global_norm = squares.sqrt();
  const at::Tensor& norm = result.global_norm;
  // An infinite norm gives NaN as in tf: a factor of 0 would hide that squares have overflowed.
  const at::Tensor scale = norm.clamp_min(max_norm).reciprocal().mul(max_norm).add(norm.sub(norm));
  for (at::Tensor& gradient : result.gradients) {
    if (gradient.defined()) gradient = scaled(gradient, scale);
  }
  return result;
}

ClippedPairs clip_by_global_norm(std::vector<std::pair<at::Tensor, Variable>> gradients,
                                 double max_norm) {
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
  return {std::move(gradients), std::move(clipped.global_norm)};
}

}  // namespace cohort
