// SPDX-License-Identifier: Apache-2.0
// What a frame can carry, for those who have to know before they send.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "cohort/core/export.h"

namespace cohort::rpc {

// Empty for a tensor that travels; otherwise what it is, and why it does not: "float32[2] of a
// sparse layout". Undefined ones do not travel either.
COHORT_API std::string obstacle_to_travel(const at::Tensor& tensor);

}  // namespace cohort::rpc
