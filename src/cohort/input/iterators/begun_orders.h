// SPDX-License-Identifier: Apache-2.0
// Which orders of elements the distributed datasets of a strategy have begun.
#pragma once

#include <cstdint>
#include <set>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::input {

// A program that distributes a dataset again for each pass over it gets the order of the first pass
// each time. Thread-safe.
class COHORT_API BegunOrders {
 public:
  // The first pass over a dataset with this fingerprint, which a seed shuffles, begins. Logs a
  // warning, once, if another one with the same fingerprint has begun before.
  void begin(std::uint64_t fingerprint);

 private:
  Mutex mutex_;
  std::set<std::uint64_t> fingerprints_ COHORT_GUARDED_BY(mutex_);  // of the first kOrdersMax
  bool has_warned_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::input
