// SPDX-License-Identifier: Apache-2.0
// The memory of a cut: a moment whose values the store keeps until they are exported.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::parameter_server {

// Counts the old values that are kept in place of those that updates have replaced. Thread-safe.
class CutMemory {
 public:
  explicit CutMemory(std::uint64_t bytes_max) : bytes_max_(bytes_max) {}

  // Returns false if there is not so much. A piece that is larger than all there is gets its memory
  // when nothing else is kept.
  bool try_take(std::uint64_t bytes) {
    const Lock lock(mutex_);
    if (bytes_ > 0 && (bytes > bytes_max_ || bytes_ > bytes_max_ - bytes)) return false;
    add(bytes);
    return true;
  }
  // For an update that cannot wait.
  void take(std::uint64_t bytes) {
    const Lock lock(mutex_);
    add(bytes);
  }
  bool has_room() const {
    const Lock lock(mutex_);
    return bytes_ < bytes_max_;
  }
  // Rows were exported, for which this was kept.
  void give_back(std::uint64_t bytes) {
    const Lock lock(mutex_);
    bytes_ -= bytes;
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
  std::uint64_t bytes() const {
    const Lock lock(mutex_);
    return bytes_;
  }
  // The most that was kept at a time.
  std::uint64_t most_bytes() const {
    const Lock lock(mutex_);
    return most_bytes_;
  }

 private:
  void add(std::uint64_t bytes) COHORT_REQUIRES(mutex_) {
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
  }

  const std::uint64_t bytes_max_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::uint64_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t most_bytes_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t changes_ COHORT_GUARDED_BY(mutex_) = 0;
  bool has_ended_ COHORT_GUARDED_BY(mutex_) = false;
};

}  // namespace cohort::parameter_server
