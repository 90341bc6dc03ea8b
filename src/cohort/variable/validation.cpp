// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/validation.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/variable/effect_kinds.h"
#include "cohort/variable/hyperparameter.h"

namespace cohort::variable {

void check_tensor(std::string_view name, const at::Tensor& tensor, bool is_trainable,
                  c10::Device device) {
  COHORT_CHECK(!name.empty(), ErrorCode::invalid_argument,
               "[variable.create] expected a name, got an empty one");
  COHORT_CHECK(tensor.defined(), ErrorCode::invalid_argument,
               "[variable.create] expected a tensor, got an undefined one (variable '", name, "')");
  const std::string expected = device.is_cpu() ? "the CPU" : device.str();
  COHORT_CHECK(
      tensor.layout() == at::kStrided && tensor.is_contiguous() && tensor.device() == device,
      ErrorCode::invalid_argument, "[variable.create] expected a dense contiguous tensor on ",
      expected, ", got ", TensorSpec::of(tensor).to_string(), " on ", tensor.device().str(),
      " (variable '", name, "'); call contiguous() and to(",
      device.is_cpu() ? "at::kCPU" : "\"" + device.str() + "\"", ") first");
  if (!is_trainable) return;
  COHORT_CHECK(!tensor.is_complex(), ErrorCode::unimplemented,
               "[variable.create] expected a real tensor, got ", TensorSpec::of(tensor).to_string(),
               " (trainable variable '", name,
               "'); complex values are not trained: keep their real and imaginary parts in the "
               "last axis of a real one (torch::view_as_real), and use torch::view_as_complex of "
               "it");
  COHORT_CHECK(tensor.is_floating_point(), ErrorCode::invalid_argument,
               "[variable.create] expected a floating-point tensor, got ",
               TensorSpec::of(tensor).to_string(), " (trainable variable '", name,
               "'); only those have gradients: set is_trainable to false");
  COHORT_CHECK(tensor.is_leaf() && tensor.requires_grad(), ErrorCode::invalid_argument,
               "[variable.create] expected a leaf tensor that requires a gradient, got ",
               tensor.is_leaf() ? "one that does not require it" : "the result of a computation",
               " (trainable variable '", name, "'); use value.detach().requires_grad_()");
}

void check_assign(internal::Effect::Kind kind, std::string_view name, const TensorSpec& expected,
                  const at::Tensor& value) {
  COHORT_CHECK(value.defined(), ErrorCode::invalid_argument, "[variable.assign] expected ",
               expected.to_string(), ", got an undefined tensor (variable '", name, "')");
  const TensorSpec got = TensorSpec::of(value);
  COHORT_CHECK(expected == got && value.layout() == at::kStrided, ErrorCode::invalid_argument,
               "[variable.assign] expected ", expected.to_string(), ", got ",
               value.layout() == at::kStrided ? "" : "a sparse ", got.to_string(), " (variable '",
               name, "'); assign a value of the variable's own dtype and shape");
  COHORT_CHECK(kind != internal::Effect::Kind::assign_sub || got.dtype != at::kBool,
               ErrorCode::invalid_argument, "[variable.assign_sub] expected numbers, got ",
               got.to_string(), " (variable '", name,
               "'), which LibTorch does not subtract; assign(value.logical_xor(…))");
}

namespace {

// Whether a value of the dtype can be exactly this integer.
bool is_in_range(std::int64_t number, at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return std::in_range<std::uint8_t>(number);
    case at::kChar:
      return std::in_range<std::int8_t>(number);
    case at::kShort:
      return std::in_range<std::int16_t>(number);
    case at::kInt:
      return std::in_range<std::int32_t>(number);
    default:
      return true;
  }
}

// As TensorFlow converts numbers of the host: never from a fraction to an integer, and between
// truth values and numbers not at all.
bool converts_to(const at::Scalar& number, at::ScalarType dtype) {
  if (number.isBoolean() || dtype == at::kBool) return number.isBoolean() && dtype == at::kBool;
  if (at::isComplexType(dtype)) return true;
  if (number.isIntegral(/*includeBool=*/false) && at::isIntegralType(dtype, false))
    return is_in_range(number.toLong(), dtype);
  return !number.isComplex() && at::isFloatingType(dtype);
}

std::string text_of(const at::Scalar& number) {
  if (number.isBoolean()) return number.toBool() ? "true" : "false";
  if (number.isComplex()) return "a complex number";
  return number.isIntegral(false) ? std::to_string(number.toLong())
                                  : std::to_string(number.toDouble());
}

}  // namespace

at::Tensor number_value(internal::Effect::Kind kind, std::string_view name, const TensorSpec& spec,
                        const at::Scalar& number) {
  const std::string call = call_name(kind);
  COHORT_CHECK(spec.sizes->empty(), ErrorCode::invalid_argument, "[", call, "] expected ",
               spec.to_string(), ", got a single number (variable '", name,
               "'); assign a tensor, for example at::full(sizes, number)");
  const auto refuse = [&] {
    internal::throw_error(ErrorCode::invalid_argument, "[", call, "] expected a number that ",
                          dtype_name(spec.dtype), " can hold without a cast, got ", text_of(number),
                          " (variable '", name, "'); cast it before");
  };
  if (!converts_to(number, spec.dtype)) refuse();
  try {
    return at::full({}, number, at::TensorOptions(spec.dtype));
  } catch (const Error&) {
    throw;
  } catch (const std::exception&) {
    refuse();  // a finite number would become infinite
  }
  COHORT_ASSERT(false);
}

std::vector<double> values_of(std::span<const at::Tensor> hyper) {
  std::vector<double> values;
  values.reserve(hyper.size());
  for (const at::Tensor& value : hyper) values.push_back(hyperparameter_value(value));
  return values;
}

}  // namespace cohort::variable
