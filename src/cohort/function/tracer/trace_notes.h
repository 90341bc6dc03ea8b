// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <string>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::function {

// Notes on the traces of a function. Thread-safe.
class COHORT_API TraceNotes {
 public:
  // Adds the program of a trace, as text; only the newest 16 are kept.
  void add(std::string listing);
  // All programs that are kept, oldest first; empty before the first trace.
  std::string programs() const;
  // Each returns true only once.
  bool may_warn_of_gradients() { return !has_warned_.exchange(true); }
  bool may_warn_of_escapes() { return !has_warned_of_escapes_.exchange(true); }

 private:
  mutable Mutex mutex_;
  std::deque<std::string> listings_ COHORT_GUARDED_BY(mutex_);
  std::size_t count_ COHORT_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> has_warned_{false};
  std::atomic<bool> has_warned_of_escapes_{false};
};

}  // namespace cohort::function
