// SPDX-License-Identifier: Apache-2.0
// Compares the outputs of a traced call and an eager one.
#pragma once

#include <string>

#include "tests/parity/step_fuzz/program.h"

namespace cohort::parity {

struct Tolerance {
  double relative = 0;  // 0: equal bits
  // Treats -0.0 and 0.0 as equal: a gradient may be added to zeros, or be the first one.
  bool ignores_sign_of_zero = false;
};

// Describes the first difference; empty if there is none. NaN equals NaN.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance);

}  // namespace cohort::parity
