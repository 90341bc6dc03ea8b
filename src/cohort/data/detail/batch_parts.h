// SPDX-License-Identifier: Apache-2.0
// How a batch is split into parts.
#pragma once

#include <algorithm>
#include <cstdint>

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

}  // namespace cohort::data
