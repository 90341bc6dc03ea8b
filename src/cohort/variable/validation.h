// SPDX-License-Identifier: Apache-2.0
// The checks of arguments that all kinds of variables share.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

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
// The value of assign() and so on of a number. Throws invalid_argument for a variable of several
// numbers, and unless its dtype can hold this one without a cast.
at::Tensor number_value(internal::Effect::Kind kind, std::string_view name, const TensorSpec& spec,
                        const at::Scalar& number);
std::vector<double> values_of(std::span<const at::Tensor> hyper);

}  // namespace cohort::variable
