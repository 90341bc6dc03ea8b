// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/arithmetic.h"

#include <ATen/ops/add.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/mul.h>

#include <limits>

#include "cohort/core/error.h"
#include "tests/conformance/values.h"

namespace cohort::conformance {
namespace {

at::Scalar scalar_of(const Json& k) {
  return k.is_number_integer() ? at::Scalar(k.get<std::int64_t>()) : at::Scalar(k.get<double>());
}

StringTensor joined(const StringTensor& x, const std::function<std::string(std::int64_t)>& suffix) {
  std::vector<std::string> values;
  for (std::int64_t i = 0; i < x.numel(); ++i) values.push_back(std::string(x[i]) + suffix(i));
  return StringTensor(x.sizes(), values);
}

}  // namespace

void refuse(const std::string& name, const std::string& got) {
  throw Error(ErrorCode::invalid_argument,
              "[conformance." + name + "] expected a value it is defined for, got " + got);
}

void check_scalar(at::ScalarType dtype, const Json& k, const std::string& name) {
  const bool is_text = dtype == kString && k.is_string() && name == "add";
  const bool is_integer = at::isIntegralType(dtype, false) && k.is_number_integer();
  const bool is_real = at::isFloatingType(dtype) && k.is_number();
  if (!is_text && !is_integer && !is_real) refuse(name, dtype_name(dtype) + " and " + brief(k, 80));
}

void check_numbers(at::ScalarType dtype, const std::string& name) {
  if (dtype == kString || dtype == at::ScalarType::Bool) refuse(name, dtype_name(dtype));
}

at::Tensor plus(const at::Tensor& x, const Json& k) {
  check_scalar(x.scalar_type(), k, "add");
  if (StringTensor::is(x)) {
    const std::string suffix = bytes_of(k);
    return joined(StringTensor::of(x), [&](std::int64_t) { return suffix; });
  }
  return at::add(x, scalar_of(k)).to(x.scalar_type());
}

at::Tensor times(const at::Tensor& x, const Json& k) {
  check_scalar(x.scalar_type(), k, "mul");
  return at::mul(x, scalar_of(k)).to(x.scalar_type());
}

at::Tensor product(const at::Tensor& x, const at::Tensor& y) {
  check_numbers(x.scalar_type(), "square");
  return at::mul(x, y);
}

at::Tensor sum_of(const at::Tensor& x, const at::Tensor& y) {
  if (x.scalar_type() != y.scalar_type() || x.scalar_type() == at::ScalarType::Bool) {
    refuse("sum", dtype_name(x.scalar_type()) + " and " + dtype_name(y.scalar_type()));
  }
  if (!StringTensor::is(x)) return at::add(x, y);
  const StringTensor right = StringTensor::of(y);
  return joined(StringTensor::of(x),
                [&](std::int64_t i) { return std::string(right[right.numel() == 1 ? 0 : i]); });
}

bool has_value(const at::Tensor& x, const Json& k) {
  if (StringTensor::is(x)) {
    const std::string wanted = bytes_of(k);
    for (const std::string& value : StringTensor::of(x).values()) {
      if (value == wanted) return true;
    }
    return false;
  }
  return at::eq(x, scalar_of(k)).any().item<bool>();
}

std::int64_t integer_of(const at::Tensor& x, const std::string& name) {
  if (StringTensor::is(x) || x.numel() != 1) refuse(name, TensorSpec::of(x).to_string());
  return x.item().toLong();
}

Nest each_tensor(const Nest& element, const std::function<at::Tensor(const at::Tensor&)>& fn) {
  return element.map_leaves([&](const Nest& leaf) { return Nest(fn(leaf.tensor())); });
}

const at::Tensor& first_tensor(const Nest& element, const std::string& name) {
  const Nest* leaf = &element;
  while (!leaf->is_leaf()) {
    if (leaf->kind() == Nest::Kind::map) {
      if (leaf->entries().empty()) refuse(name, "an empty map");
      leaf = &leaf->entries().begin()->second;
    } else {
      if (leaf->items().empty()) refuse(name, "an empty tuple");
      leaf = &leaf->items().front();
    }
  }
  return leaf->tensor();
}

}  // namespace cohort::conformance
