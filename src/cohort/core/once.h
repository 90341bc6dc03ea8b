// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <utility>

#include "cohort/core/mutex.h"

namespace cohort {

// Like std::call_once: runs the function once. After a throw, the next call runs it again; with
// std::call_once that call would hang under ThreadSanitizer and on some systems. Thread-safe; the
// function must not use the same Once.
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
