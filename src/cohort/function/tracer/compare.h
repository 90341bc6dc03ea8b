// SPDX-License-Identifier: Apache-2.0
// Programs as text, and the first difference between two of them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/function/program/program.h"

namespace cohort::function {

// "%7 = aten::add.Tensor(%1, %2, 1)".
std::string describe(const Op& op);
// A whole program: inputs, variables, constants, operators and outputs, a line each, as
// "#3 %7 = aten::add.Tensor(%1, %2, 1): float32[4, 3]". `specs` by value, where they are known.
std::string listing(const Program& program, const std::vector<std::optional<TensorSpec>>& specs);
// The first difference, with the op's number and both forms; empty for equal programs. Input specs
// are not compared.
std::string first_difference(const Program& first, const Program& second);
// The same if the second program is unfinished; its last op may have no results yet.
std::string first_difference_so_far(const Program& first, const Program& beginning);
// The same for composite calls; `beginning` may be shorter.
std::string first_difference_so_far(const std::vector<Op>& first, const std::vector<Op>& beginning);

// The first effect (update, print) that is not of the same kind and variable; empty where all are.
// Their values are not compared.
std::string first_difference_of_effects(const Program& first, const Program& second);

}  // namespace cohort::function
