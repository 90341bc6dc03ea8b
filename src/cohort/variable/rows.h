// SPDX-License-Identifier: Apache-2.0
// Changes of some rows of a value (tf.Variable.scatter_add and so on), wherever the value is kept.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

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

// int64 [n], contiguous and on the CPU, and the opposite, which copies.
COHORT_API std::span<const std::int64_t> numbers_of(const at::Tensor& ids);
COHORT_API at::Tensor tensor_of(std::span<const std::int64_t> numbers);

// --- a value whose rows are divided into parts --------------------------------------------------

// The rows among some ids that one part has.
struct RowsOfPart {
  std::size_t part = 0;
  at::Tensor ids;     // int64 [n], counted from the first row of the part
  at::Tensor places;  // int64 [n], ascending: where they are among all ids; undefined: they are all
};
// For each part that has some; without ids for the first one, which then knows the size of a row.
// `first_rows`: of each part, ascending. `ids`: int64 [m], rows of the whole value; a number that
// is no row goes to the first or the last part.
COHORT_API std::vector<RowsOfPart> split_rows(std::span<const std::int64_t> first_rows,
                                              const at::Tensor& ids);
// The same for any division; `place_of` gives the part of an id, and its number there.
COHORT_API std::vector<RowsOfPart> split_ids(
    std::size_t num_parts, const at::Tensor& ids,
    const std::function<std::pair<std::size_t, std::int64_t>(std::int64_t id)>& place_of);
// Rows [n, …] that split_rows() has divided, in the order of the ids. Throws data_loss if they do
// not fit.
COHORT_API at::Tensor joined_rows(std::span<const RowsOfPart> split,
                                  std::span<const at::Tensor> rows);
// Rows of `rows` at these places of split_rows(). If the ids ascend, it is a view.
COHORT_API at::Tensor rows_at(const at::Tensor& rows, const at::Tensor& places);

}  // namespace cohort::variable
