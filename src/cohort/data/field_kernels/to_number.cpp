// SPDX-License-Identifier: Apache-2.0
// to_number: converts strings to numbers.
#include <ATen/ops/empty.h>

#include "cohort/core/error.h"
#include "cohort/data/field_kernels/field_kernel.h"
#include "cohort/data/files/csv_number.h"

namespace cohort::data {
namespace {

class ToNumberKernel final : public FieldKernel {
 public:
  explicit ToNumberKernel(ToNumberOptions options) : dtype_(options.dtype) {
    const bool is_known = dtype_ == at::ScalarType::Float || dtype_ == at::ScalarType::Double ||
                          dtype_ == at::ScalarType::Int || dtype_ == at::ScalarType::Long;
    COHORT_CHECK(is_known, ErrorCode::invalid_argument,
                 "[data.to_number] expected .dtype float32, float64, int32 or int64, got ",
                 dtype_name(dtype_));
  }

  std::string_view name() const override { return "to_number"; }
  Attributes attributes() const override { return {{"dtype", static_cast<std::int64_t>(dtype_)}}; }

  TensorSpec spec(const TensorSpec& input, const std::string& field) const override {
    check_is_string(input, name(), field);
    return {dtype_, input.sizes};
  }

  at::Tensor apply(const at::Tensor& values, const std::string& field) const override {
    const StringTensor strings = strings_in(values, name(), field);
    at::Tensor numbers = at::empty(values.sizes(), dtype_);
    switch (dtype_) {
      case at::ScalarType::Int:
        fill<std::int32_t>(strings, field, numbers);
        break;
      case at::ScalarType::Long:
        fill<std::int64_t>(strings, field, numbers);
        break;
      case at::ScalarType::Float:
        fill<float>(strings, field, numbers);
        break;
      default:
        fill<double>(strings, field, numbers);
    }
    return numbers;
  }

 private:
  template <class T>
  void fill(const StringTensor& strings, const std::string& field, at::Tensor& numbers) const {
    T* out = numbers.data_ptr<T>();
    for (std::int64_t i = 0; i < strings.numel(); ++i) {
      COHORT_CHECK(parse_number(strings[i], out[i]), ErrorCode::invalid_argument,
                   "[data.to_number] expected ", dtype_name(dtype_), " in ", field, ", got ",
                   quoted(strings[i]), " (value ", i, ")");
    }
  }

  at::ScalarType dtype_;
};

}  // namespace

FieldFunction to_number(FieldPath field, ToNumberOptions options) {
  return {std::move(field), std::make_shared<const ToNumberKernel>(options)};
}

std::shared_ptr<const FieldKernel> make_to_number_kernel(AttributeReader& attributes) {
  const std::int64_t dtype = attributes.integer("dtype");
  COHORT_CHECK(dtype >= 0 && dtype < static_cast<std::int64_t>(at::ScalarType::NumOptions),
               ErrorCode::data_loss, "[data.to_number] expected a dtype, got ", dtype);
  return std::make_shared<const ToNumberKernel>(
      ToNumberOptions{.dtype = static_cast<at::ScalarType>(dtype)});
}

}  // namespace cohort::data
