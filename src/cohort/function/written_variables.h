// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cohort::function {

// For each variable of an encoded program whether operators write to its memory, and not calls and
// effects alone.
std::vector<bool> written_by_operators(std::span<const std::byte> program);

// Where an encoded program makes its calls of the process that has traced it, by their numbers, and
// where it reads the memory of each variable last: the positions of the ops. A variable that shares
// memory with a result is read after the last op; -1: it is not read.
struct CallsAndReads {
  std::vector<int> calls;
  std::vector<int> last_reads;
};
CallsAndReads calls_and_reads(std::span<const std::byte> program);

}  // namespace cohort::function
