// SPDX-License-Identifier: Apache-2.0
// How callers of the runtime wait.
#pragma once

#include "cohort/coordinator/internal/runtime.h"

namespace cohort::coordinator {

// A caller's turn in schedule or join, when it came before the deadline. Who has it gives up when
// no closure ends.
class Runtime::Turn {
 public:
  Turn(Runtime& runtime, Deadline deadline) : runtime_(runtime) {
    const Lock lock(runtime_.turn_mutex_);
    has_come_ = runtime_.turn_changed_.wait(
        runtime_.turn_mutex_, deadline,
        [this]() COHORT_NO_THREAD_SAFETY_ANALYSIS { return !runtime_.is_turn_taken_; });
    if (has_come_) runtime_.is_turn_taken_ = true;
  }
  ~Turn() {
    if (!has_come_) return;
    {
      const Lock lock(runtime_.turn_mutex_);
      runtime_.is_turn_taken_ = false;
    }
    runtime_.turn_changed_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool has_come() const { return has_come_; }

 private:
  Runtime& runtime_;
  bool has_come_ = false;
};

// Has every end of a closure wake this thread while it lives.
class Runtime::FetcherCount {
 public:
  explicit FetcherCount(Runtime& runtime) : runtime_(runtime) { add(1); }
  ~FetcherCount() { add(-1); }
  FetcherCount(const FetcherCount&) = delete;
  FetcherCount& operator=(const FetcherCount&) = delete;

 private:
  void add(int change) {
    const Lock lock(runtime_.mutex_);
    runtime_.fetchers_ += change;
  }
  Runtime& runtime_;
};

}  // namespace cohort::coordinator
