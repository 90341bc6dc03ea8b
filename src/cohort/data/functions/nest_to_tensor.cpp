// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/functions/nest_to_tensor.h"

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cohort/core/computed.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"

namespace cohort::data {
namespace {

[[noreturn]] void refuse(const Nest& value, at::ScalarType dtype) {
  internal::throw_error(
      ErrorCode::invalid_argument, "[data.element] expected a value that can be ",
      dtype_name(dtype), ", got ",
      value.is_tensor() ? TensorSpec::of(value.tensor()).to_string() : value.structure());
}

bool is_host_scalar(const Nest& value) {
  return value.is_leaf() && !value.is_tensor() && !value.is_null();
}

template <class T>
T number_of(const Nest& value, at::ScalarType dtype) {
  switch (value.kind()) {
    case Nest::Kind::boolean:
      return static_cast<T>(value.boolean());
    case Nest::Kind::integer:
      return static_cast<T>(value.integer());
    case Nest::Kind::real:
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        internal::throw_error(ErrorCode::invalid_argument,
                              "[data.element] expected an integer for ", dtype_name(dtype),
                              ", got ", value.real(), "; round it first");
      }
      return static_cast<T>(value.real());
    default:
      refuse(value, dtype);
  }
}

// Converts host scalars to a tensor; `sizes` is {} or their number.
at::Tensor filled(std::span<const Nest> values, std::vector<std::int64_t> sizes,
                  at::ScalarType dtype) {
  if (dtype == kString) {
    std::vector<std::string> texts;
    for (const Nest& value : values) {
      if (value.kind() != Nest::Kind::text) refuse(value, dtype);
      texts.push_back(value.text());
    }
    return StringTensor(std::move(sizes), texts);
  }
  if (dtype == at::kHalf || dtype == at::kBFloat16) {
    return filled(values, std::move(sizes), at::kFloat).to(dtype);
  }
  at::Tensor tensor = at::empty(sizes, dtype);
  AT_DISPATCH_ALL_TYPES_AND(at::ScalarType::Bool, dtype, "nest_to_tensor", [&] {
    scalar_t* out = tensor.data_ptr<scalar_t>();
    for (const Nest& value : values) *out++ = number_of<scalar_t>(value, dtype);
  });
  return tensor;
}

// Copies numbers, since a generator may reuse its buffer.
at::Tensor converted(const Nest& value, at::ScalarType dtype) {
  const at::Tensor& tensor = value.tensor();
  if (StringTensor::is(tensor) && dtype == kString) return tensor;
  if (!tensor.defined() || StringTensor::is(tensor) || dtype == kString ||
      tensor.layout() != at::kStrided) {
    refuse(value, dtype);
  }
  return tensor.detach()
      .to(at::TensorOptions().dtype(dtype).device(at::kCPU), /*non_blocking=*/false, /*copy=*/true)
      .contiguous();
}

at::Tensor stacked(const Nest::Items& items, at::ScalarType dtype) {
  Fields parts;
  for (const Nest& item : items) parts.push_back(tensor_of(item, dtype));
  for (const at::Tensor& part : parts) {
    COHORT_CHECK(part.sizes() == parts[0].sizes(), ErrorCode::invalid_argument,
                 "[data.element] expected items of one shape in a list, got ",
                 TensorSpec::of(parts[0]).to_string(), " and ", TensorSpec::of(part).to_string());
  }
  return dtype == kString ? StringTensor::stack(parts).tensor() : at::stack(parts);
}

void collect(const Nest& item, const Nest& structure, const ElementSpec& spec, Fields& fields) {
  if (structure.is_leaf()) {
    const TensorSpec& expected = spec.fields.at(fields.size());
    at::Tensor field = tensor_of(item, expected.dtype);
    COHORT_CHECK(expected.accepts(TensorSpec::of(field)), ErrorCode::invalid_argument,
                 "[data.element] expected ", expected.to_string(), " for field ", fields.size(),
                 ", got ", TensorSpec::of(field).to_string());
    fields.push_back(std::move(field));
    return;
  }
  const auto check = [&](bool is_alike) {
    COHORT_CHECK(is_alike, ErrorCode::invalid_argument, "[data.element] expected an item of ",
                 spec.to_string(), ", got ", item.structure());
  };
  check(item.kind() == structure.kind());
  if (item.kind() == Nest::Kind::map) {
    check(item.entries().size() == structure.entries().size());
    for (const auto& [key, inner] : structure.entries()) {
      const auto found = item.entries().find(key);
      COHORT_CHECK(found != item.entries().end(), ErrorCode::invalid_argument,
                   "[data.element] expected an item with '", key, "', got ", item.structure());
      collect(found->second, inner, spec, fields);
    }
    return;
  }
  check(item.items().size() == structure.items().size());
  for (std::size_t i = 0; i < item.items().size(); ++i) {
    collect(item.items()[i], structure.items()[i], spec, fields);
  }
}

}  // namespace

at::Tensor tensor_of(const Nest& value, at::ScalarType dtype) {
  if (value.is_tensor()) return converted(value, dtype);
  if (is_host_scalar(value)) return filled(std::span(&value, 1), {}, dtype);
  if (value.kind() != Nest::Kind::list && value.kind() != Nest::Kind::tuple) refuse(value, dtype);
  const Nest::Items& items = value.items();
  if (std::ranges::all_of(items, is_host_scalar)) {
    return filled(items, {static_cast<std::int64_t>(items.size())}, dtype);
  }
  return stacked(items, dtype);
}

Fields fields_of(const Nest& item, const ElementSpec& spec) {
  Fields fields;
  collect(item, spec.structure, spec, fields);
  return fields;
}

Nest with_tensors(const Nest& element) {
  return element.map_leaves([](const Nest& leaf) -> Nest {
    switch (leaf.kind()) {
      case Nest::Kind::integer:
        return tensor_of(leaf, at::kLong);
      case Nest::Kind::real:
        return tensor_of(leaf, at::kFloat);
      case Nest::Kind::boolean:
        return tensor_of(leaf, at::kBool);
      case Nest::Kind::text:
        return tensor_of(leaf, kString);
      case Nest::Kind::tensor:
        return computed(leaf.tensor());
      default:
        return leaf;
    }
  });
}

}  // namespace cohort::data
