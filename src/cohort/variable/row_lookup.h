// SPDX-License-Identifier: Apache-2.0
// Reads rows of a variable, inside and outside of steps.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort::variable {

// Rows ids[i]; gradients flow to a variable whose tensor() has the current value, and to shards
// that have theirs. `ids`: int64 or int32 [n], which outside of a trace are checked. Throws
// failed_precondition inside a trace for a variable without a tensor of its own.
COHORT_API at::Tensor rows_of(const Variable& variable, const at::Tensor& ids);

// Throws unimplemented unless the shards are as a strategy makes them: of equal numbers of rows, or
// with one row more in the first ones.
COHORT_API void check_divided_evenly(const Variable& variable, std::string_view call);

}  // namespace cohort::variable
