// SPDX-License-Identifier: Apache-2.0
// The memory of large stand-ins, whose content nobody uses outside of eager steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cohort/core/tensor_spec.h"

namespace cohort::detail {

// A tensor of zeros on the CPU. If it is large, it has no pages in memory until it is written.
at::Tensor make_stand_in(const TensorSpec& spec);
// Exchanges the memory of a large tensor, whose value the servers have, for such memory. Others
// that share the old memory keep it.
void release_value(const at::Tensor& tensor);
bool is_large(const TensorSpec& spec);
// 0 for strings, whose sizes differ.
std::int64_t bytes_of(const TensorSpec& spec);

}  // namespace cohort::detail
