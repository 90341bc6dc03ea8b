// SPDX-License-Identifier: Apache-2.0
// State shared by a strategy and its coordinator. It ensures that a strategy has one coordinator at
// a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/export.h"
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
struct CoordinatorPlace {
  Mutex mutex;
  Condition changed;
  std::weak_ptr<void> coordinator COHORT_GUARDED_BY(mutex);
  // Still true while the last coordinator shuts down.
  bool is_taken COHORT_GUARDED_BY(mutex) = false;
  CoordinatorNumbers numbers COHORT_GUARDED_BY(mutex);
};

// Marks, while it exists, that this thread runs a function that makes a worker's dataset. Such a
// function runs once per worker, so it must not create variables. Thread-compatible.
class COHORT_API MakingDataset {
 public:
  MakingDataset();
  ~MakingDataset();
  MakingDataset(const MakingDataset&) = delete;
  MakingDataset& operator=(const MakingDataset&) = delete;
  static bool is_on_this_thread();

 private:
  const bool was_on_this_thread_;
};

}  // namespace cohort
