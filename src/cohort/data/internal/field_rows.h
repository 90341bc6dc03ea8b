// SPDX-License-Identifier: Apache-2.0
// Rows of a field along its first dimension, numbers or strings.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cohort/data/element.h"

namespace cohort::data {

// Row `row` in memory of its own.
at::Tensor select_row(const at::Tensor& field, std::int64_t row);
// Rows [begin, end); numbers share the field's memory.
at::Tensor narrow_rows(const at::Tensor& field, std::int64_t begin, std::int64_t end);
// Parts whose other dimensions are equal, one behind the other, in new memory.
at::Tensor join_rows(std::span<const at::Tensor> parts);
// The number of rows of all fields; invalid_argument naming `op` where they differ or a field is a
// scalar.
std::int64_t row_count(const Fields& fields, std::string_view op);

}  // namespace cohort::data
