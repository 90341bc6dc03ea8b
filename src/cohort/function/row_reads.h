// SPDX-License-Identifier: Apache-2.0
// Which variables a program moves whole although it only looks up rows of them.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

struct WholeTable {
  std::size_t variable = 0;  // its place in ProgramInfo::variables
  bool is_pulled = false;
  bool is_pushed = false;  // its gradient, with all rows
};

// The variables that some op indexes, and that no op reads otherwise, if their values or gradients
// are moved whole. Throws data_loss for broken bytes.
COHORT_API std::vector<WholeTable> tables_moved_whole(std::span<const std::byte> program);

}  // namespace cohort::function
