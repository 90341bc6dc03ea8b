// SPDX-License-Identifier: Apache-2.0
// Counts things that have begun and not ended, and can wait until there are none.
#pragma once

#include "cohort/core/mutex.h"

namespace cohort::server {

// Thread-safe.
class OpenCount {
 public:
  void add(int change) {
    {
      const Lock lock(mutex_);
      count_ += change;
    }
    changed_.notify_all();
  }
  // Returns false at the deadline.
  bool wait_for_none(Deadline deadline) {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, deadline,
                         [this]() COHORT_REQUIRES(mutex_) { return count_ == 0; });
  }
  int get() const {
    const Lock lock(mutex_);
    return count_;
  }

 private:
  mutable Mutex mutex_;
  Condition changed_;
  int count_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::server
