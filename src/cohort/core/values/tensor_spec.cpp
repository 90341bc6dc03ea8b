// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/tensor_spec.h"

#include <ATen/core/Tensor.h>

#include "cohort/core/error.h"

namespace cohort {

TensorSpec TensorSpec::of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec()};
}

bool TensorSpec::is_static() const {
  if (!sizes) return false;
  for (const std::int64_t size : *sizes) {
    if (size < 0) return false;
  }
  return true;
}

bool TensorSpec::accepts(const TensorSpec& other) const {
  if (dtype != other.dtype) return false;
  if (!sizes) return true;
  if (!other.sizes || sizes->size() != other.sizes->size()) return false;
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    if ((*sizes)[i] >= 0 && (*sizes)[i] != (*other.sizes)[i]) return false;
  }
  return true;
}

std::int64_t TensorSpec::element_count() const {
  COHORT_CHECK(is_static(), ErrorCode::invalid_argument,
               "[core.tensor_spec] expected known sizes to count elements, got ", to_string(),
               "; call is_static() first");
  std::int64_t count = 1;
  for (const std::int64_t size : *sizes) count *= size;
  return count;
}

std::int64_t TensorSpec::byte_count() const {
  COHORT_CHECK(dtype != kString, ErrorCode::invalid_argument,
               "[core.tensor_spec] expected numbers to count bytes, got ", to_string(),
               "; the lengths of strings are known only from a StringTensor");
  return element_count() * static_cast<std::int64_t>(c10::elementSize(dtype));
}

std::string TensorSpec::to_string() const {
  std::string text = dtype_name(dtype) + "[";
  if (!sizes) return text + "...]";
  for (std::size_t i = 0; i < sizes->size(); ++i) {
    if (i > 0) text += ", ";
    text += (*sizes)[i] < 0 ? "?" : std::to_string((*sizes)[i]);
  }
  return text + "]";
}

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Byte:
      return "uint8";
    case at::ScalarType::Char:
      return "int8";
    case at::ScalarType::Short:
      return "int16";
    case at::ScalarType::Int:
      return "int32";
    case at::ScalarType::Long:
      return "int64";
    case at::ScalarType::Half:
      return "float16";
    case at::ScalarType::Float:
      return "float32";
    case at::ScalarType::Double:
      return "float64";
    case at::ScalarType::Bool:
      return "bool";
    case at::ScalarType::BFloat16:
      return "bfloat16";
    case at::ScalarType::ComplexFloat:
      return "complex64";
    case at::ScalarType::ComplexDouble:
      return "complex128";
    case kString:
      return "string";
    default:
      return c10::toString(dtype);
  }
}

}  // namespace cohort
