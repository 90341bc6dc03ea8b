// SPDX-License-Identifier: Apache-2.0
// The arguments of operators as text for errors.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string>

namespace cohort::function {

// The tensors among `arguments`, as "self float32[4, 3], mat2 float32[4, 2]"; "no tensors" where
// there are none. Arguments that a failed kernel has moved away are left out.
std::string tensors_among(const c10::FunctionSchema& schema,
                          std::span<const c10::IValue> arguments);

}  // namespace cohort::function
