// SPDX-License-Identifier: Apache-2.0
// Keeps the first complete pass of a cache in memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort::data {

// The items of a pass, rows or elements. Immutable.
template <class T>
struct CachedPass {
  std::uint64_t id = 0;  // distinguishes passes of one cache
  std::vector<T> items;
};

// Shared by the iterators of a dataset. Thread-safe.
template <class T>
class MemoryCache {
 public:
  using Pass = std::shared_ptr<const CachedPass<T>>;

  // nullptr before the first complete pass.
  Pass pass() const {
    const Lock lock(mutex_);
    return pass_;
  }
  // Keeps `pass` if it is the first one.
  void offer(const Pass& pass) {
    const Lock lock(mutex_);
    if (!pass_) pass_ = pass;
  }

 private:
  mutable Mutex mutex_;
  Pass pass_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::data
