// SPDX-License-Identifier: Apache-2.0
// The rows of batches, of numbers or strings, along their first dimension: how they are split into
// parts, selected and joined.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/data/element.h"

namespace cohort::data {

// Consecutive rows. A value type.
struct RowRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t length() const { return end - begin; }
};

// Part `index` of `parts` of a batch of `rows` rows, as tf's rebatching splits it: each part has
// the quotient rounded up, as long as there are rows; the last ones are shorter or empty.
inline RowRange part_of_batch(std::int64_t rows, std::int64_t index, std::int64_t parts) {
  if (rows == 0) return {};
  const std::int64_t step = (rows - 1) / parts + 1;
  // Compared first, since `parts` may be so large that the product overflows.
  if (index > rows / step) return {rows, rows};
  const std::int64_t begin = index * step;
  return {begin, begin + std::min(step, rows - begin)};
}

// The number of batches of `rows` rows; a negative number of rows, as of an unknown or infinite
// cardinality, stays.
inline std::int64_t batch_count(std::int64_t rows, std::int64_t batch_size, bool drop_remainder) {
  if (rows < 0) return rows;
  return rows / batch_size + (!drop_remainder && rows % batch_size != 0 ? 1 : 0);
}

// Rows [begin, end) of a field; numbers share the field's memory. Each part of numbers counts the
// writes into it for itself: with views of one tensor, a replica that writes into its part in place
// would make the backward passes of the others fail, since LibTorch has one such count for all
// views. A field that requires a gradient has views, through which the gradient flows.
COHORT_API at::Tensor narrow_rows(const at::Tensor& field, std::int64_t begin, std::int64_t end);
// The same for a tensor that may be a view of another one; other tensors are returned as they are.
COHORT_API at::Tensor with_own_version(const at::Tensor& tensor);

// Returns a tensor without rows: its first size is 0, and so are other unknown sizes; known ones
// stay. For a scalar it is a zero or "".
COHORT_API at::Tensor empty_tensor(const TensorSpec& spec);
COHORT_API Fields empty_batch_of(const ElementSpec& spec);

// Warns once in a process of a field, none a scalar, with another number of rows than the first
// one: it is cut into parts for itself, as in tf, so that they have rows of other elements.
COHORT_API void warn_of_other_rows(std::span<const at::Tensor> fields);

// A copy of row `row`.
at::Tensor select_row(const at::Tensor& field, std::int64_t row);
// Concatenates parts whose other dimensions are equal, in new memory.
at::Tensor join_rows(std::span<const at::Tensor> parts);
// The number of rows, equal in all fields; invalid_argument, naming `op`, if they differ or a field
// is a scalar.
std::int64_t row_count(const Fields& fields, std::string_view op);
// invalid_argument, naming `op`, if elements of `spec` have a scalar field, which has no rows.
void check_batches(const ElementSpec& spec, std::string_view op);

}  // namespace cohort::data
