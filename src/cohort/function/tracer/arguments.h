// SPDX-License-Identifier: Apache-2.0
// Converts an argument of a boxed call to the program's form.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <functional>

#include "cohort/function/program/program.h"

namespace cohort::function {

// The value number of a defined tensor.
using NumberOf = std::function<int(const at::Tensor&)>;

// Throws Refusal naming the argument where a program cannot carry its kind.
Arg encode_argument(const c10::Argument& argument, const c10::IValue& value,
                    const NumberOf& number_of);
// Visits the defined tensors of an argument: one, those of a list, or none.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

// Arguments of the tracer's own ops.
Arg value_argument(int id);
Arg values_argument(std::vector<int> ids);
Arg integer_argument(std::int64_t value);
Arg integers_argument(const std::vector<std::int64_t>& values);
Arg real_argument(double value);
Arg boolean_argument(bool value);
Arg text_argument(std::string value);

}  // namespace cohort::function
