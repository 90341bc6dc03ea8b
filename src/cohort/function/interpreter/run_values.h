// SPDX-License-Identifier: Apache-2.0
// The tensors that a run gets: what they must be, and the form in which the ops take them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>

#include "cohort/core/tensor_spec.h"

namespace cohort::function {

// Throws invalid_argument, with "`what` #`index` `name`" in its text, for another dtype or size.
void check_spec(const TensorSpec& expected, const at::Tensor& value, std::string_view what,
                std::size_t index, std::string_view name);

// The values with the strides of a new tensor of these sizes. The trace saw these strides and
// computed values, and its ops depend on them: for example, it recorded a flatten() as a view, and
// the imaginary part as one of the memory.
at::Tensor row_major(const at::Tensor& given);

}  // namespace cohort::function
