// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/reduction.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/add.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/true_divide.h>

#include <algorithm>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

// TensorFlow's division promotes int32 and int64 to float64, and narrower types to float32.
at::ScalarType mean_type(at::ScalarType type) {
  if (type == at::kInt || type == at::kLong) return at::kDouble;
  const bool is_half = type == at::kHalf || type == at::kBFloat16;
  return at::isIntegralType(type, true) || is_half ? at::kFloat : type;
}

}  // namespace

namespace internal {

std::vector<std::int64_t> Reduction::checked_axes(const at::Tensor& component) const {
  std::vector<std::int64_t> axes;
  for (const std::int64_t axis : axes_->numbers()) {
    COHORT_CHECK(axis >= -component.dim() && axis < component.dim(), ErrorCode::invalid_argument,
                 "[strategy.reduce] expected an axis of ", TensorSpec::of(component).to_string(),
                 ", got ", axis);
    const std::int64_t from_first = axis < 0 ? axis + component.dim() : axis;
    COHORT_CHECK(std::find(axes.begin(), axes.end(), from_first) == axes.end(),
                 ErrorCode::invalid_argument, "[strategy.reduce] expected each axis once, got ",
                 axis, " twice");
    axes.push_back(from_first);
  }
  return axes;
}

Reduction::Parts Reduction::parts(const at::Tensor& component) const {
  COHORT_CHECK(!StringTensor::is(component), ErrorCode::invalid_argument,
               "[strategy.reduce] expected numbers, got strings");
  const at::ScalarType type = component.scalar_type();
  COHORT_CHECK(type != at::kBool, ErrorCode::invalid_argument,
               "[strategy.reduce] expected numbers, got bool; convert it inside run() first, for "
               "example with to(at::kLong)");
  const bool is_mean = op_ == ReduceOp::mean;
  const at::ScalarType wide = is_mean ? mean_type(type) : type;
  if (!axes_) return {.value = component.to(wide), .count = 1, .type = type};
  const std::vector<std::int64_t> axes = checked_axes(component);
  std::int64_t count = 1;
  for (const std::int64_t axis : axes) count *= component.size(axis);
  // With no axes, at::sum() would sum over all.
  if (axes.empty()) return {.value = component.to(wide), .count = 1, .type = type};
  return {.value = at::sum(component, axes, /*keepdim=*/false, wide), .count = count, .type = type};
}

Reduction::Parts Reduction::sum(const std::vector<Parts>& all) const {
  Parts sum = all.front();
  for (std::size_t i = 1; i < all.size(); ++i) {
    const Parts& next = all[i];
    COHORT_CHECK(next.value.sizes() == sum.value.sizes() && next.type == sum.type,
                 ErrorCode::invalid_argument,
                 "[strategy.reduce] expected components of one shape and dtype, got ",
                 TensorSpec{sum.type, sum.value.sizes().vec()}.to_string(), " and ",
                 TensorSpec{next.type, next.value.sizes().vec()}.to_string(), " of replica ", i,
                 "; sum them inside run() first, or give an axis");
    sum.value = at::add(sum.value, next.value.to(sum.value.device()));
    sum.count += next.count;
  }
  return sum;
}

at::Tensor Reduction::result(const Parts& sum) const {
  if (op_ == ReduceOp::sum) return sum.value;
  const at::Tensor mean = at::true_divide(sum.value, static_cast<double>(sum.count));
  return at::isFloatingType(sum.type) ? mean.to(sum.type) : mean;
}

}  // namespace internal

}  // namespace cohort
