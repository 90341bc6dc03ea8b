// SPDX-License-Identifier: Apache-2.0
#include "cohort/replicas/reduction.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/add.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/true_divide.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <span>
#include <string>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/row_gradient.h"

namespace cohort::internal {
namespace {

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

// TensorFlow's division promotes int32 and int64 to float64, and narrower types to float32.
at::ScalarType mean_type(at::ScalarType type) {
  if (type == at::kInt || type == at::kLong) return at::kDouble;
  return at::isIntegralType(type, true) || is_half(type) ? at::kFloat : type;
}

// The smallest and the largest number of an integer type that is narrower than int64.
struct Range {
  std::int64_t smallest = 0;
  std::int64_t largest = 0;
};
template <class T>
constexpr Range kRangeOf{std::numeric_limits<T>::min(), std::numeric_limits<T>::max()};

// nullopt for other types.
std::optional<Range> narrow_range(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return kRangeOf<std::uint8_t>;
    case at::kChar:
      return kRangeOf<std::int8_t>;
    case at::kShort:
      return kRangeOf<std::int16_t>;
    case at::kInt:
      return kRangeOf<std::int32_t>;
    default:
      return std::nullopt;
  }
}

// Sums of narrow integers are computed in int64. One that their type cannot hold would wrap.
void check_fits(const at::Tensor& sums, at::ScalarType type, std::string_view call) {
  const std::optional<Range> range = narrow_range(type);
  if (!range || sums.scalar_type() == type || sums.numel() == 0) return;
  const auto [smallest, largest] = at::aminmax(sums);
  for (const at::Tensor& extreme : {smallest, largest}) {
    const auto sum = extreme.item<std::int64_t>();
    COHORT_CHECK(sum >= range->smallest && sum <= range->largest, ErrorCode::invalid_argument, "[",
                 call, "] expected a sum that ", dtype_name(type), " can hold, from ",
                 range->smallest, " to ", range->largest, ", got ", sum,
                 "; convert the values before they are added, with to(at::kLong)");
  }
}

// All elements that the tensor has, or of a sparse one will have when its rows are added.
at::Tensor sums_of(const Reduction::Parts& sum) {
  if (!sum.is_sparse() || !narrow_range(sum.type)) return sum.value;
  return at::_sparse_coo_tensor_unsafe(sum.indices, sum.value, sum.sizes).coalesce()._values();
}

std::string text_of(const Reduction::Parts& parts) {
  const std::vector<std::int64_t> sizes =
      parts.is_sparse() ? parts.sizes : parts.value.sizes().vec();
  return (parts.is_sparse() ? "sparse " : "") + TensorSpec{parts.type, sizes}.to_string();
}

struct TreeSum {
  at::Tensor value;
  bool is_own = false;  // in memory that nothing else uses
};

at::Tensor extreme_of(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  return op == ReduceOp::max ? at::maximum(a, b) : at::minimum(a, b);
}

// Undefined values count as nothing.
TreeSum tree_sum(std::span<const at::Tensor> values, ReduceOp op) {
  if (values.size() == 1) return {values.front()};
  const std::size_t left_size = left_of_tree(values.size());
  TreeSum left = tree_sum(values.first(left_size), op);
  TreeSum right = tree_sum(values.subspan(left_size), op);
  if (!right.value.defined()) return left;
  if (!left.value.defined()) return right;
  right.value = right.value.to(left.value.device());
  if (op == ReduceOp::max || op == ReduceOp::min)
    return {extreme_of(op, left.value, right.value), true};
  if (left.is_own) {
    left.value.add_(right.value);
    return left;
  }
  return {at::add(left.value, right.value), true};
}

// Whether some are defined, all of those as rows of one shape and of a dtype that is added as it
// is. Other ones are added as any sparse tensors, or refused.
bool are_row_gradients(const std::vector<at::Tensor>& gradients) {
  const at::Tensor* first = nullptr;
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    if (first == nullptr) first = &gradient;
    const bool is_alike = variable::is_row_gradient(gradient) &&
                          gradient.sizes() == first->sizes() &&
                          gradient.scalar_type() == first->scalar_type();
    if (!is_alike || is_half(gradient.scalar_type())) return false;
  }
  return first != nullptr;
}

// A row is added as an element of a dense gradient: first in each replica, then over them.
Reduction::Parts sum_of_rows(const std::vector<at::Tensor>& gradients, const Reduction& reduction,
                             bool are_temporary) {
  std::vector<at::Tensor> sums;
  for (const at::Tensor& gradient : gradients)
    sums.push_back(gradient.defined() ? variable::sum_rows(gradient) : at::Tensor());
  Reduction::Parts sum = reduction.parts(variable::add_all_rows(sums));
  if (are_temporary) return sum;
  // The only gradient may be its own sum.
  for (const at::Tensor& gradient : gradients) {
    if (!gradient.defined() || !sum.value.is_alias_of(variable::rows_of(gradient).values)) continue;
    sum.value = sum.value.clone();
    sum.indices = sum.indices.clone();
  }
  return sum;
}

}  // namespace

std::vector<std::int64_t> Reduction::checked_axes(const at::Tensor& component) const {
  std::vector<std::int64_t> axes;
  for (const std::int64_t axis : axes_->numbers()) {
    COHORT_CHECK(axis >= -component.dim() && axis < component.dim(), ErrorCode::invalid_argument,
                 "[", call_, "] expected an axis of ", TensorSpec::of(component).to_string(),
                 ", got ", axis,
                 component.dim() == 0 ? "; a scalar has none: reduce it without an axis" : "");
    const std::int64_t from_first = axis < 0 ? axis + component.dim() : axis;
    COHORT_CHECK(std::ranges::find(axes, from_first) == axes.end(), ErrorCode::invalid_argument,
                 "[", call_, "] expected each axis once, got ", axis, " twice");
    axes.push_back(from_first);
  }
  return axes;
}

// Half precision is added in float32 and rounded once, as Group::all_reduce() does. Integers are
// added in int64, so that result() sees a sum that their type cannot hold.
at::ScalarType Reduction::working_type(at::ScalarType type) const {
  if (is_extreme()) return type;
  if (op_ == ReduceOp::mean) return mean_type(type);
  if (narrow_range(type)) return at::kLong;
  return is_half(type) ? at::kFloat : type;
}

Reduction::Parts Reduction::sparse_parts(const at::Tensor& component) const {
  COHORT_CHECK(!axes_, ErrorCode::unimplemented, "[", call_,
               "] expected dense tensors with an axis, got a sparse one; make it dense first, with "
               "to_dense()");
  const at::ScalarType type = component.scalar_type();
  return {.value = component._values().to(working_type(type)),
          .count = 1,
          .type = type,
          .indices = component._indices(),
          .sizes = component.sizes().vec()};
}

Reduction::Parts Reduction::parts(const at::Tensor& component) const {
  COHORT_CHECK(component.defined(), ErrorCode::invalid_argument, "[", call_,
               "] expected tensors, got an undefined one; pass zeros instead");
  COHORT_CHECK(!StringTensor::is(component), ErrorCode::invalid_argument, "[", call_,
               "] expected numbers, got strings");
  const at::ScalarType type = component.scalar_type();
  COHORT_CHECK(type != at::kBool, ErrorCode::invalid_argument, "[", call_,
               "] expected numbers, got bool; convert it inside run() first, for example with "
               "to(at::kLong)");
  COHORT_CHECK(!is_extreme() || !component.is_complex(), ErrorCode::invalid_argument, "[", call_,
               "] expected numbers that have an order for ReduceOp::", name_of(op_), ", got ",
               dtype_name(type), "; reduce abs() of them, or real() and imag()");
  COHORT_CHECK(!is_extreme() || component.layout() != at::kSparse, ErrorCode::unimplemented, "[",
               call_, "] expected dense tensors for ReduceOp::", name_of(op_),
               ", got a sparse one; make it dense first, with to_dense()");
  if (component.layout() == at::kSparse) return sparse_parts(component);
  COHORT_CHECK(component.layout() == at::kStrided, ErrorCode::invalid_argument, "[", call_,
               "] expected dense or sparse COO tensors, got layout ", component.layout(),
               "; convert it with to_dense() first");
  const at::ScalarType wide = working_type(type);
  if (!axes_) return {.value = component.to(wide), .count = 1, .type = type};
  const std::vector<std::int64_t> axes = checked_axes(component);
  std::int64_t count = 1;
  for (const std::int64_t axis : axes) count *= component.size(axis);
  // With no axes, at::sum() would sum over all.
  if (axes.empty()) return {.value = component.to(wide), .count = 1, .type = type};
  if (is_extreme()) return {.value = extreme_along(component, axes), .count = count, .type = type};
  return {.value = at::sum(component, axes, /*keepdim=*/false, wide), .count = count, .type = type};
}

// A replica without elements, as of an empty part of a batch, leaves the value to the others.
at::Tensor Reduction::extreme_along(const at::Tensor& component,
                                    const std::vector<std::int64_t>& axes) const {
  if (component.numel() > 0)
    return op_ == ReduceOp::max ? at::amax(component, axes) : at::amin(component, axes);
  std::vector<std::int64_t> sizes;
  for (std::int64_t d = 0; d < component.dim(); ++d)
    if (std::ranges::find(axes, d) == axes.end()) sizes.push_back(component.size(d));
  const double infinity = std::numeric_limits<double>::infinity();
  if (component.is_floating_point())
    return at::full(sizes, op_ == ReduceOp::max ? -infinity : infinity, component.options());
  const Range range = narrow_range(component.scalar_type()).value_or(kRangeOf<std::int64_t>);
  return at::full(sizes, op_ == ReduceOp::max ? range.smallest : range.largest,
                  component.options());
}

void Reduction::check_alike(const Parts& first, const Parts& next, std::size_t replica) const {
  const bool is_alike = next.type == first.type && next.is_sparse() == first.is_sparse() &&
                        (first.is_sparse() ? next.sizes == first.sizes &&
                                                 next.indices.size(0) == first.indices.size(0)
                                           : next.value.sizes() == first.value.sizes());
  COHORT_CHECK(is_alike, ErrorCode::invalid_argument, "[", call_,
               "] expected components of one shape and dtype, got ", text_of(first), " and ",
               text_of(next), " of replica ", replica,
               "; sum them inside run() first, or give an axis");
}

Reduction::Parts Reduction::sum(const std::vector<Parts>& all) const {
  Parts sum = {};
  std::vector<at::Tensor> values, indices;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].value.defined() && !sum.value.defined()) {
      sum = all[i];
    } else if (all[i].value.defined()) {
      check_alike(sum, all[i], i);
      sum.count += all[i].count;
    }
    values.push_back(all[i].value);
    indices.push_back(all[i].indices);
  }
  // Otherwise tree_sum() copies.
  if (cross_device_ops_ == CrossDeviceOps::reduction_to_one_device || sum.is_sparse()) {
    for (std::vector<at::Tensor>* const tensors : {&values, &indices}) {
      for (at::Tensor& tensor : *tensors) {
        if (tensor.defined()) tensor = tensor.to(sum.value.device());
      }
    }
  }
  if (!sum.is_sparse()) {
    sum.value = tree_sum(values, op_).value;
    return sum;
  }
  std::erase_if(values, [](const at::Tensor& each) { return !each.defined(); });
  std::erase_if(indices, [](const at::Tensor& each) { return !each.defined(); });
  sum.value = at::cat(values, 0);
  sum.indices = at::cat(indices, 1);
  return sum;
}

std::size_t left_of_tree(std::size_t count) { return std::bit_floor(count - 1); }

at::Tensor Reduction::result(const Parts& sum) const {
  at::Tensor value = sum.value;
  if (op_ == ReduceOp::mean) value = at::true_divide(value, static_cast<double>(sum.count));
  if (op_ == ReduceOp::sum) check_fits(sums_of(sum), sum.type, call_);
  if (op_ == ReduceOp::sum || at::isFloatingType(sum.type)) value = value.to(sum.type);
  return sum.is_sparse() ? at::_sparse_coo_tensor_unsafe(sum.indices, value, sum.sizes) : value;
}

at::Tensor Reduction::of(const std::vector<at::Tensor>& values) const {
  std::vector<Parts> all;
  for (const at::Tensor& value : values) all.push_back(parts(value));
  return result(sum(all));
}

Reduction::Parts sum_of_gradient_parts(const std::vector<at::Tensor>& gradients,
                                       std::string_view call, CrossDeviceOps cross_device_ops,
                                       bool are_temporary) {
  const Reduction reduction(ReduceOp::sum, {}, call, cross_device_ops);
  if (are_row_gradients(gradients)) return sum_of_rows(gradients, reduction, are_temporary);
  std::vector<Reduction::Parts> parts;
  std::size_t count = 0;
  for (const at::Tensor& gradient : gradients) {
    parts.emplace_back();
    if (!gradient.defined()) continue;
    parts.back() = reduction.parts(gradient.detach());
    ++count;
  }
  if (count == 0) return {};
  Reduction::Parts sum = reduction.sum(parts);
  if (count > 1 || are_temporary) return sum;
  sum.value = sum.value.clone();
  if (sum.is_sparse()) sum.indices = sum.indices.clone();
  return sum;
}

at::Tensor gradient_of_sum(const Reduction::Parts& sum) {
  return sum.value.defined() ? Reduction(ReduceOp::sum, {}).result(sum) : at::Tensor();
}

at::Tensor sum_of_gradients(const std::vector<at::Tensor>& gradients, std::string_view call) {
  return gradient_of_sum(sum_of_gradient_parts(gradients, call));
}

}  // namespace cohort::internal
