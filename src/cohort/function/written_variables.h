// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cohort::function {

// For each variable of an encoded program whether operators write to its memory, and not calls and
// effects alone.
std::vector<bool> written_by_operators(std::span<const std::byte> program);

}  // namespace cohort::function
