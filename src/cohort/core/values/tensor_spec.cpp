// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/tensor_spec.h"

#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <utility>

#include "cohort/core/error.h"

namespace cohort {

TensorSpec TensorSpec::of(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.sizes().vec()};
}

bool TensorSpec::is_static() const {
  return sizes && std::ranges::none_of(*sizes, [](std::int64_t size) { return size < 0; });
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
  return c10::multiply_integers(*sizes);
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
  constexpr std::array<std::pair<at::ScalarType, const char*>, 13> kNames = {
      {{at::kByte, "uint8"},
       {at::kChar, "int8"},
       {at::kShort, "int16"},
       {at::kInt, "int32"},
       {at::kLong, "int64"},
       {at::kHalf, "float16"},
       {at::kFloat, "float32"},
       {at::kDouble, "float64"},
       {at::kBool, "bool"},
       {at::kBFloat16, "bfloat16"},
       {at::kComplexFloat, "complex64"},
       {at::kComplexDouble, "complex128"},
       {kString, "string"}}};
  for (const auto& [known, name] : kNames)
    if (dtype == known) return name;
  return c10::toString(dtype);
}

}  // namespace cohort
