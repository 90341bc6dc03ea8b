// SPDX-License-Identifier: Apache-2.0
// The amounts of work that this thread has done. Tests compare these numbers for two sizes of a
// problem, since times depend on the machine.
#pragma once

#include <cstdint>

namespace cohort::function {

// A value type.
struct Work {
  std::uint64_t comparisons = 0;   // of tensors, in loops over many of them
  std::uint64_t hashed_bytes = 0;  // of the memory of tensors
};

inline Work& work_of_thread() {
  static thread_local Work work;
  return work;
}

// Equality of the keys of a hash table.
struct CountedEqual {
  bool operator()(const void* a, const void* b) const {
    ++work_of_thread().comparisons;
    return a == b;
  }
};

}  // namespace cohort::function
