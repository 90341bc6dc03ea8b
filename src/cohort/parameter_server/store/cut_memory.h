// SPDX-License-Identifier: Apache-2.0
// The memory of a cut: a moment whose values the store keeps until they are exported.
#pragma once

#include <atomic>
#include <cstdint>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::parameter_server {

// Counts the old values that are kept in place of those that updates have replaced. Thread-safe.
class CutMemory {
 public:
  explicit CutMemory(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Returns false if there is not so much. A piece that is larger than all there is gets its memory
  // when nothing else is kept. An update takes memory for each of its rows, so this takes no lock.
  bool try_take(std::uint64_t bytes) {
    std::uint64_t now = bytes_.load(std::memory_order_relaxed);
    do {
      if (now > 0 && (bytes > bytes_max_ || now > bytes_max_ - bytes)) return false;
    } while (!bytes_.compare_exchange_weak(now, now + bytes, std::memory_order_relaxed));
    return true;
  }
  // For an update that cannot wait.
  void take(std::uint64_t bytes) { bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  bool has_room() const { return bytes() < bytes_max_; }
  // Rows were exported, for which this was kept.
  void give_back(std::uint64_t bytes) {
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
    const Lock lock(mutex_);
    ++changes_;
    changed_.notify_all();
  }
  // The cut has ended: nobody waits for its memory any more.
  void end() {
    const Lock lock(mutex_);
    has_ended_ = true;
    changed_.notify_all();
  }
  bool has_ended() const {
    const Lock lock(mutex_);
    return has_ended_;
  }
  // How often rows were exported.
  std::uint64_t changes() const {
    const Lock lock(mutex_);
    return changes_;
  }
  // Waits until rows are exported after so many changes, or the cut has ended. Returns false at the
  // deadline.
  bool wait(std::uint64_t changes, Deadline deadline) const {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, deadline, [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
      return has_ended_ || changes_ != changes;
    });
  }
  std::uint64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  const std::uint64_t bytes_max_;
  std::atomic<std::uint64_t> bytes_ = 0;
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::uint64_t changes_ COHORT_GUARDED_BY(mutex_) = 0;
  bool has_ended_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::parameter_server
