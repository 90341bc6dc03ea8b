// SPDX-License-Identifier: Apache-2.0
// Where threads wait for a condition over atomic variables.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>

#include "cohort/collective/groups/brief_yields.h"
#include "cohort/core/mutex.h"

namespace cohort::collective::in_process {

// Threads spin first, since a member that is in step arrives within microseconds and waking a
// thread takes tens of them. Then they let others run, and then they sleep. Thread-safe.
class Gate {
 public:
  // `num_threads`: of those that meet. If they are more than the cores, spinning keeps those from
  // running for which it waits.
  explicit Gate(int num_threads)
      : spins_(static_cast<unsigned>(num_threads) <= std::thread::hardware_concurrency() ? 2000
                                                                                         : 20) {}

  // Waits until is_open() is true or the deadline has passed; returns is_open(). It must read its
  // variables with memory_order_seq_cst.
  template <class IsOpen>
  bool wait(IsOpen is_open, Deadline deadline) {
    if (spin(is_open, spins_)) return true;
    if (yields_.wait(is_open)) return true;
    num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
    bool is_ready = false;
    {
      const Lock lock(mutex_);
      is_ready = changed_.wait(mutex_, deadline, is_open);
    }
    num_sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    return is_ready;
  }

  // Looks a few times; returns whether it is open.
  template <class IsOpen>
  bool spin(IsOpen is_open, int times) {
    for (int i = 0; i < times; ++i) {
      if (is_open()) return true;
      pause();
    }
    return false;
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
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  const int spins_;
  BriefYields yields_;
  std::atomic<int> num_sleepers_ = 0;
  Mutex mutex_;
  Condition changed_;
};

}  // namespace cohort::collective::in_process
