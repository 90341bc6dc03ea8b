// SPDX-License-Identifier: Apache-2.0
// Which variables a program only reads by rows, as an embedding reads its table.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

// The places in ProgramInfo::variables of those that some op indexes, and that no op reads
// otherwise. Throws data_loss for broken bytes.
COHORT_API std::vector<std::size_t> variables_read_by_rows(std::span<const std::byte> program);

}  // namespace cohort::function
