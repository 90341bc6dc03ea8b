// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace cohort::function {

// How an encoded program uses its variables. Positions are those of ops.
struct UseOfVariables {
  // Whether operators write to the memory of each variable, and not calls and effects alone.
  std::vector<bool> are_written_by_operators;
  // Where the memory of each variable is read last; after the last op, if it is that of a result;
  // -1: nowhere.
  std::vector<int> last_reads;
  // Where the calls of the process are that has traced it, by their numbers.
  std::vector<int> calls;
};
UseOfVariables use_of_variables(std::span<const std::byte> program);

}  // namespace cohort::function
