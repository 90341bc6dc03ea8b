// SPDX-License-Identifier: Apache-2.0
// Ensures that a strategy has one coordinator at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort {

// The next free ids. Successive coordinators of a strategy use the same servers, which identify
// functions, iterators and applied closures by number. So a coordinator continues the numbering of
// its predecessor.
struct CoordinatorNumbers {
  std::uint64_t next_closure = 1;  // 0 is no closure
  std::uint32_t next_function = 0;
  std::uint64_t next_iterator = 1;
  std::vector<std::uint64_t> left_iterators;  // unused, but still on the workers
};

// Thread-safe.
struct CoordinatorLease {
  Mutex mutex;
  Condition changed;
  std::weak_ptr<void> coordinator COHORT_GUARDED_BY(mutex);
  // Still true while the last coordinator shuts down.
  bool is_taken COHORT_GUARDED_BY(mutex) = false;
  CoordinatorNumbers numbers COHORT_GUARDED_BY(mutex);
};

}  // namespace cohort
