// SPDX-License-Identifier: Apache-2.0
// Makes the gradients of embeddings sparse where nothing but a call that takes them so uses them,
// as an optimizer's step in this process does. The sum of a sparse gradient's rows has the bits of
// the dense one (variable/row_gradient.h), and costs nothing for the rows that were not used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

// Whether the call that function::Trace::call_host() has recorded under this number takes a sparse
// gradient in place of this one of its values, with the same result.
using TakesRows = std::function<bool(std::int64_t call, std::size_t value)>;

// `specs`: of the program's values, as far as they are known; those that become sparse are unknown
// afterwards. Which gradients become sparse depends on the sizes of tables alone, since the workers
// of a group, whose batches may have different sizes, must agree on it.
void make_gradients_sparse(Program& program, std::vector<std::optional<TensorSpec>>& specs,
                           const TakesRows& takes_rows);

}  // namespace cohort::function
