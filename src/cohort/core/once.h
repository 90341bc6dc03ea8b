// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

#include "cohort/core/mutex.h"

namespace cohort {

// Runs one function once, whoever comes first: std::call_once, whose calls all wait for ever after
// a function that throws under ThreadSanitizer and on some systems. Here the next call runs it
// again. Thread-safe; the function must not come back to the same Once.
class Once {
 public:
  template <class F>
  void call(F&& function) {
    if (is_done_.load(std::memory_order_acquire)) return;
    const Lock lock(mutex_);
    if (is_done_.load(std::memory_order_relaxed)) return;
    std::forward<F>(function)();
    is_done_.store(true, std::memory_order_release);
  }

 private:
  Mutex mutex_;
  std::atomic<bool> is_done_{false};
};

}  // namespace cohort
