// SPDX-License-Identifier: Apache-2.0
// Whether a traced call gave what the eager one gave.
#pragma once

#include <string>

#include "tests/parity/step_fuzz/program.h"

namespace cohort::parity {

struct Tolerance {
  double relative = 0;  // 0: the bits
  // -0.0 is 0.0, as where a gradient is added to zeros or is the first one.
  bool ignores_sign_of_zero = false;
};

// The first difference, in words; empty where there is none. NaN equals NaN.
std::string difference(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance);

}  // namespace cohort::parity
