// SPDX-License-Identifier: Apache-2.0
// The check of every program before any other code uses it.
#pragma once

#include "cohort/function/program/program.h"

namespace cohort::function {

// Throws data_loss unless ids are in range, every value is defined before its first use (inputs,
// variables and constants once), and each draw has its specs. Does not check operators.
void verify(const Program& program);

}  // namespace cohort::function
