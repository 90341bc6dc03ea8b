// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/buffer_writes.h"

#include <string_view>

namespace cohort::function {
namespace {

using Arguments = std::span<const c10::IValue>;

// nullptr: the op has no such argument.
const c10::IValue* argument_of(const c10::OperatorHandle& op, Arguments arguments,
                               std::string_view name) {
  const auto& schema = op.schema().arguments();
  for (std::size_t i = 0; i < schema.size() && i < arguments.size(); ++i) {
    if (schema[i].name() == name) return &arguments[i];
  }
  return nullptr;
}

at::Tensor tensor_of(const c10::IValue* value) {
  return value != nullptr && value->isTensor() ? value->toTensor() : at::Tensor();
}

bool is_false(const c10::IValue* value) {
  return value != nullptr && value->isBool() && !value->toBool();
}

// The write to one of the statistics; `any` if `written` is neither.
BufferWrite average_of(const RunningAverages& averages, const at::Tensor& written) {
  const auto is_memory_of = [&](const at::Tensor& statistic) {
    return statistic.defined() && statistic.is_alias_of(written);
  };
  // This form of the condition also refuses NaN.
  if (!(averages.momentum >= 0 && averages.momentum <= 1)) return {};
  const bool is_mean = is_memory_of(averages.mean), is_variance = is_memory_of(averages.variance);
  if (is_mean == is_variance || !written.is_floating_point()) return {};
  return {BufferWrite::Kind::average, averages.momentum, is_variance};
}

}  // namespace

std::optional<RunningAverages> running_averages_of(const c10::OperatorHandle& op,
                                                   Arguments arguments) {
  const c10::IValue* momentum = argument_of(op, arguments, "momentum");
  if (momentum == nullptr || !momentum->isDouble()) return std::nullopt;
  if (is_false(argument_of(op, arguments, "training")) ||
      is_false(argument_of(op, arguments, "use_input_stats"))) {
    return std::nullopt;
  }
  RunningAverages averages{tensor_of(argument_of(op, arguments, "running_mean")),
                           tensor_of(argument_of(op, arguments, "running_var")),
                           momentum->toDouble()};
  if (!averages.mean.defined() && !averages.variance.defined()) return std::nullopt;
  return averages;
}

BufferWrite buffer_write_of(const c10::OperatorHandle& op, Arguments arguments, std::size_t index,
                            const std::optional<RunningAverages>& composite) {
  if (!arguments[index].isTensor()) return {};
  const at::Tensor& written = arguments[index].toTensor();
  const std::string& name = op.operator_name().name;
  if (index == 0 && (name == "aten::add_" || name == "aten::sub_")) {
    const bool is_integer = at::isIntegralType(written.scalar_type(), /*includeBool=*/false);
    return {.kind = is_integer ? BufferWrite::Kind::sum : BufferWrite::Kind::any};
  }
  if (const auto own = running_averages_of(op, arguments)) return average_of(*own, written);
  // instance_norm averages over the examples and copies the result into its statistics.
  if (composite && name == "aten::copy_") return average_of(*composite, written);
  return {};
}

}  // namespace cohort::function
