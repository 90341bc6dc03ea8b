// SPDX-License-Identifier: Apache-2.0
// Tensors as text for people: their values, and those among the arguments of an operator.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string>

namespace cohort::function {

struct ValueTextOptions {
  std::int64_t values_max = 8;
  int digits = 6;
};

// "float32[2, 6] {0.5, 1, nan, 2, 3, 4, 5, 6, …}", in row-major order.
std::string value_text(const at::Tensor& tensor, const ValueTextOptions& options = {});

// The tensors among `arguments`, as "self float32[4, 3], mat2 float32[4, 2]"; "no tensors" where
// there are none. Arguments that a failed kernel has moved away are left out.
std::string tensors_among(const c10::FunctionSchema& schema,
                          std::span<const c10::IValue> arguments);

}  // namespace cohort::function
