// SPDX-License-Identifier: Apache-2.0
// Where threads wait for a condition over atomic variables.
#pragma once

#include <atomic>

#include "cohort/core/mutex.h"
#include "cohort/core/spin.h"

namespace cohort::collective::in_process {

// Threads wait briefly first, and then they sleep. Thread-safe.
class Gate {
 public:
  // `num_threads`: of those that meet.
  explicit Gate(int num_threads) : brief_wait_(num_threads) {}

  // Waits until is_open() is true or the deadline has passed; returns is_open(). It must read its
  // variables with memory_order_seq_cst.
  template <class IsOpen>
  bool wait(IsOpen is_open, Deadline deadline) {
    if (brief_wait_.wait(is_open)) return true;
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    bool is_ready = false;
    {
      const Lock lock(mutex_);
      is_ready = changed_.wait(mutex_, deadline, is_open);
    }
    num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return is_ready;
  }

  // Call it after a change that may open the gate, which must be a read-modify-write with
  // memory_order_seq_cst. So one of two happens: this thread sees the sleeper, or the sleeper sees
  // the change when it looks once more before it sleeps.
  void notify() {
    if (num_sleepers_.load(std::memory_order_seq_cst) == 0) return;
    const Lock lock(mutex_);
    changed_.notify_all();
  }

 private:
  BriefWait brief_wait_;
  std::atomic<int> num_sleepers_ = 0;
  Mutex mutex_;
  Condition changed_;
};

}  // namespace cohort::collective::in_process
