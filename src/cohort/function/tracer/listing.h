// SPDX-License-Identifier: Apache-2.0
// A whole program as text for people.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

// Inputs, variables, constants, operators and outputs, a line each, as
// "#3 %7 = aten::add.Tensor(%1, %2, 1): float32[4, 3]". `specs` by value, where they are known.
std::string listing(const Program& program, const std::vector<std::optional<TensorSpec>>& specs);

}  // namespace cohort::function
