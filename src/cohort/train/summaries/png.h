// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

namespace cohort::train {

// Packs an image, uint8 of shape [height, width, 1, 3 or 4], as PNG. Throws invalid_argument for
// any other tensor; `name` is for the message.
std::string png_of(const at::Tensor& pixels, std::string_view name);

}  // namespace cohort::train
