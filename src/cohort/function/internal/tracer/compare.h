// SPDX-License-Identifier: Apache-2.0
// Programs as text, and what tells two of them apart.
#pragma once

#include <string>
#include <vector>

#include "cohort/function/internal/program.h"

namespace cohort::function {

// "%7 = aten::add.Tensor(%1, %2, 1)".
std::string describe(const Op& op);
// The first difference, with the op's number and both forms; empty for equal programs. Input specs
// are not compared.
std::string first_difference(const Program& first, const Program& second);
// The same for a program of which only a beginning is there; its last op may lack its results.
std::string first_difference_so_far(const Program& first, const Program& beginning);
// For composite calls; a list that is shorter than the other differs only in what it has.
std::string first_difference_so_far(const std::vector<Op>& first, const std::vector<Op>& beginning);

// The first effect (update, print) that is not of the same kind and variable; empty where all are.
// Their values are not compared.
std::string first_difference_of_effects(const Program& first, const Program& second);

}  // namespace cohort::function
