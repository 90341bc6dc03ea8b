// SPDX-License-Identifier: Apache-2.0
// Whether a worker is to stop, which all workers learn in the same step.
#pragma once

#include <cstdint>
#include <optional>

#include "cohort/core/mutex.h"

namespace cohort::internal {

// The flag of one worker. It travels with the sums of a step (StepHeader::kStop), whose result is
// the same on all workers; so all of them do the same next. Thread-safe.
class StopFlag {
 public:
  void want(bool is_wanted) {
    const Lock lock(mutex_);
    is_wanted_ = is_wanted;
  }
  bool is_wanted() const {
    const Lock lock(mutex_);
    return is_wanted_;
  }
  // A call of all workers in this agreement period has carried their flags; `any`: one of them was
  // set.
  void note(bool any, std::uint64_t epoch) {
    const Lock lock(mutex_);
    if (epoch_ != epoch) has_travelled_ = is_agreed_ = false;
    epoch_ = epoch;
    has_travelled_ = true;
    is_agreed_ = is_agreed_ || any;
  }
  // Whether one of the flags was set, as far as they have travelled in this agreement period;
  // nullopt: they have not since the last call.
  std::optional<bool> take(std::uint64_t epoch) {
    const Lock lock(mutex_);
    if (epoch_ != epoch || !(has_travelled_ || is_agreed_)) return std::nullopt;
    has_travelled_ = false;
    return is_agreed_;
  }

 private:
  mutable Mutex mutex_;
  bool is_wanted_ COHORT_GUARDED_BY(mutex_) = false;
  bool has_travelled_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_agreed_ COHORT_GUARDED_BY(mutex_) = false;
  std::uint64_t epoch_ COHORT_GUARDED_BY(mutex_) = 0;  // of what was noted
};

}  // namespace cohort::internal
