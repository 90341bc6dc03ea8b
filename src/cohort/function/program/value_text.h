// SPDX-License-Identifier: Apache-2.0
// The values of tensors as text for people.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace cohort::function {

struct ValueTextOptions {
  std::int64_t values_max = 8;
  int digits = 6;
};

// "float32[2, 6] {0.5, 1, nan, 2, 3, 4, 5, 6, …}", in row-major order.
std::string value_text(const at::Tensor& tensor, const ValueTextOptions& options = {});

}  // namespace cohort::function
