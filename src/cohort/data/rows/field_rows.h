// SPDX-License-Identifier: Apache-2.0
// Functions on the rows of a field of numbers or strings, along its first dimension.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "cohort/data/element.h"

namespace cohort::data {

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
