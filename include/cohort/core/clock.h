// SPDX-License-Identifier: Apache-2.0
// Clocks and deadlines. The clock is an argument, so that tests can advance the time by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

#include "cohort/core/export.h"

namespace cohort {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Thread-safe.
class COHORT_API Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint now() const = 0;
  // Waits on `changed` until `ready()` is true or `time` is reached; returns ready(). `lock` is
  // held on entry and return.
  virtual bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                          TimePoint time, const std::function<bool()>& ready) = 0;
  // The machine's monotonic clock.
  static Clock& system();
};

// A point in time at which a call gives up. A value type.
class COHORT_API Deadline {
 public:
  // Never expires.
  Deadline() : time_(TimePoint::max()) {}
  explicit Deadline(TimePoint time) : time_(time) {}
  static Deadline after(Duration duration, const Clock& clock = Clock::system());

  TimePoint time() const { return time_; }
  bool is_infinite() const { return time_ == TimePoint::max(); }
  bool has_expired(const Clock& clock = Clock::system()) const { return clock.now() >= time_; }
  // Zero if it has expired, Duration::max() if it is infinite.
  Duration remaining(const Clock& clock = Clock::system()) const;

 private:
  TimePoint time_;
};

}  // namespace cohort
