// SPDX-License-Identifier: Apache-2.0
// What must hold of every program before anything else looks at it, whoever made it.
#pragma once

#include "cohort/function/internal/program.h"

namespace cohort::function {

// Throws data_loss unless ids are in range, every value is defined before its first use (inputs,
// variables and constants once), and each draw has its specs. Knows nothing of operators.
void verify(const Program& program);

}  // namespace cohort::function
