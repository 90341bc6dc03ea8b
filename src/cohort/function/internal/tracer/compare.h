// SPDX-License-Identifier: Apache-2.0
// Programs as text, and what tells two of them apart.
#pragma once

#include <string>

#include "cohort/function/internal/program.h"

namespace cohort::function {

// "%7 = aten::add.Tensor(%1, %2, 1)".
std::string describe(const Op& op);
// The first difference, with the op's number and both forms; empty for equal programs. Input specs
// are not compared.
std::string first_difference(const Program& first, const Program& second);

}  // namespace cohort::function
