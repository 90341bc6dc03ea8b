// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/value_text.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "cohort/core/computed.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::function {
namespace {

template <class T>
void write_values(std::ostream& out, const at::Tensor& values) {
  const T* data = values.data_ptr<T>();
  for (std::int64_t i = 0; i < values.numel(); ++i) out << (i > 0 ? ", " : "") << data[i];
}

constexpr std::size_t kTensorsOfListMax = 8;

std::string text_of(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return "";
  const at::Tensor& tensor = value.toTensor();
  const std::string spec = TensorSpec::of(tensor).to_string();
  return tensor.layout() == at::kStrided ? spec : "sparse " + spec;
}

std::string text_of_list(c10::ArrayRef<c10::IValue> items) {
  std::string text;
  const std::size_t count = std::min(items.size(), kTensorsOfListMax);
  for (std::size_t i = 0; i < count; ++i) {
    const std::string item = text_of(items[i]);
    if (!item.empty()) text += (text.empty() ? "" : ", ") + item;
  }
  if (text.empty()) return "";
  return "[" + text + (count < items.size() ? ", …]" : "]");
}

}  // namespace

std::string value_text(const at::Tensor& tensor, const ValueTextOptions& options) {
  std::ostringstream text;
  text << TensorSpec::of(tensor).to_string() << " {" << std::setprecision(options.digits)
       << std::boolalpha;
  const at::Tensor first = computed(tensor.detach()).flatten().slice(0, 0, options.values_max);
  if (first.scalar_type() == at::kBool) {
    write_values<bool>(text, first.contiguous());
  } else if (at::isIntegralType(first.scalar_type(), /*includeBool=*/false)) {
    write_values<std::int64_t>(text, first.to(at::kLong).contiguous());
  } else if (first.is_complex()) {
    write_values<c10::complex<double>>(text, first.to(at::kComplexDouble).contiguous());
  } else {
    write_values<double>(text, first.to(at::kDouble).contiguous());
  }
  text << (tensor.numel() > options.values_max ? ", …}" : "}");
  return text.str();
}

std::string tensors_among(const c10::FunctionSchema& schema,
                          std::span<const c10::IValue> arguments) {
  std::string text;
  const std::size_t count = std::min(arguments.size(), schema.arguments().size());
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& value = arguments[i];
    const bool is_list = value.isTensorList() || (value.isList() && !value.isIntList() &&
                                                  !value.isDoubleList() && !value.isBoolList());
    const std::string one = is_list ? text_of_list(value.toListRef()) : text_of(value);
    if (one.empty()) continue;
    text += (text.empty() ? "" : ", ") + schema.arguments()[i].name() + " " + one;
  }
  return text.empty() ? "no tensors" : text;
}

}  // namespace cohort::function
