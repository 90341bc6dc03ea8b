// SPDX-License-Identifier: Apache-2.0
// The checks of arguments that all kinds of variables share.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::variable {

// Checks the tensor that a variable is made with: dense, contiguous, on the device, and for a
// trainable one a floating-point leaf that requires a gradient.
void check_tensor(std::string_view name, const at::Tensor& tensor, bool is_trainable,
                  c10::Device device = at::kCPU);
void check_assign(internal::Effect::Kind kind, std::string_view name, const TensorSpec& expected,
                  const at::Tensor& value);
std::vector<double> values_of(std::span<const at::Tensor> hyper);

}  // namespace cohort::variable
