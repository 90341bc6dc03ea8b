// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/program/argument_text.h"

#include <algorithm>

#include "cohort/core/tensor_spec.h"

namespace cohort::function {
namespace {

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
