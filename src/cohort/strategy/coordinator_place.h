// SPDX-License-Identifier: Apache-2.0
// What a coordinator and its strategy share: the place of the one coordinator that a strategy may
// have at a time, and what its callers are doing.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort {

// Coordinators of one strategy follow each other on the same servers, which know what they hold
// and have applied by number: a successor goes on counting where the last one stopped.
struct CoordinatorNumbers {
  std::uint64_t next_closure = 1;  // 0 is no closure
  std::uint32_t next_function = 0;
  std::uint64_t next_iterator = 1;
  std::vector<std::uint64_t> left_iterators;  // still on the workers, of no use any more
};

// Thread-safe.
struct CoordinatorPlace {
  Mutex mutex;
  Condition changed;
  std::weak_ptr<void> coordinator COHORT_GUARDED_BY(mutex);
  // Also while the last one is ending.
  bool is_taken COHORT_GUARDED_BY(mutex) = false;
  CoordinatorNumbers numbers COHORT_GUARDED_BY(mutex);
};

// Stands while a function that makes a worker's dataset runs on this thread. It runs once for each
// worker, so it must not make variables. Thread-compatible.
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
