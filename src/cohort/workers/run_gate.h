// SPDX-License-Identifier: Apache-2.0
// Keeps runs out while the workers form a new group, and until they have done so.
#pragma once

#include <atomic>

#include "cohort/core/error.h"

namespace cohort::internal {

// Thread-safe.
class RunGate {
 public:
  // A run is in progress while this exists; nullptr: nothing is counted. Throws failed_precondition
  // while the gate is closed.
  class Entry {
   public:
    explicit Entry(RunGate* gate) : gate_(gate) {
      if (gate_ == nullptr) return;
      ++gate_->entries_;
      if (!gate_->is_closed_) return;
      --gate_->entries_;
      throw_error(ErrorCode::failed_precondition,
                  "[strategy.run] expected a strategy whose workers are a group, got one whose "
                  "rebuild() has not returned, or has failed; call rebuild() again");
    }
    ~Entry() {
      if (gate_ != nullptr) --gate_->entries_;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    RunGate* const gate_;
  };

  // Throws failed_precondition if a run is in progress.
  void close() {
    const bool was_closed = is_closed_.exchange(true);
    if (entries_ == 0 || was_closed) return;
    is_closed_ = false;
    throw_error(ErrorCode::failed_precondition,
                "[strategy.rebuild] expected no run at the same time, got one on another thread; "
                "call it between two runs");
  }
  void open() { is_closed_ = false; }
  bool is_closed() const { return is_closed_; }

 private:
  // Each side writes its own before it reads the other's, so one of them sees the other.
  std::atomic<int> entries_ = 0;
  std::atomic<bool> is_closed_ = false;
};

}  // namespace cohort::internal
