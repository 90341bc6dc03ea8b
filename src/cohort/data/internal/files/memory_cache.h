// SPDX-License-Identifier: Apache-2.0
// What a cache in memory keeps of its first complete pass.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort::data {

// The items of a pass, rows or elements. Immutable.
template <class T>
struct CachedPass {
  std::uint64_t id = 0;  // tells passes of one cache apart
  std::vector<T> items;
};

// Shared by the iterators of a dataset. Thread-safe.
template <class T>
class MemoryCache {
 public:
  using Pass = std::shared_ptr<const CachedPass<T>>;

  // nullptr until a pass was complete.
  Pass pass() const {
    const Lock lock(mutex_);
    return pass_;
  }
  // The first one stays.
  void offer(const Pass& pass) {
    const Lock lock(mutex_);
    if (!pass_) pass_ = pass;
  }

 private:
  mutable Mutex mutex_;
  Pass pass_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::data
