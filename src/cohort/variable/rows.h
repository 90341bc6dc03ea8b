// SPDX-License-Identifier: Apache-2.0
// Changes of some rows of a value (tf.Variable.scatter_add and so on), wherever the value is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "cohort/core/effect_handler.h"
#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::variable {

using internal::Effect;

// Throws invalid_argument unless an effect of this kind can change a value of `spec` by these
// arguments: `indices` are int32 or int64, one for each of the `rows`, and name rows of the value.
// An integer is not divided by zero.
COHORT_API void check_rows(Effect::Kind kind, std::string_view name, const TensorSpec& spec,
                           const at::Tensor& indices, const at::Tensor& rows);

// Changes row indices[i] of `value` by rows[i], for one i after the other, so that a row may come
// several times. `value` is contiguous; the rows may be views of it, and are read before. Integers
// wrap around; a minimum or maximum of NaN is NaN.
COHORT_API void apply_rows(Effect::Kind kind, const at::Tensor& value, const at::Tensor& indices,
                           const at::Tensor& rows);

// Throws invalid_argument, with `call` in its text, unless `indices` are int32 or int64 [n], and
// name rows of a value of `spec`.
COHORT_API void check_indices(std::string_view call, std::string_view name, const TensorSpec& spec,
                              const at::Tensor& indices);

// Copies row indices[i] of `value` to row i of `rows`. All are contiguous and on the CPU, the
// indices int64 and checked.
COHORT_API void copy_rows(const at::Tensor& rows, const at::Tensor& value,
                          const at::Tensor& indices);
// The opposite: copies row i of `rows` to row indices[i] of `value`.
COHORT_API void replace_rows(const at::Tensor& value, const at::Tensor& indices,
                             const at::Tensor& rows);

}  // namespace cohort::variable
