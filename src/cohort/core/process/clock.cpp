// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/clock.h"

namespace cohort {
namespace {

class SystemClock final : public Clock {
 public:
  TimePoint now() const override { return std::chrono::steady_clock::now(); }

  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                  TimePoint time, const std::function<bool()>& ready) override {
    if (time == TimePoint::max()) {
      changed.wait(lock, ready);
      return true;
    }
    return changed.wait_until(lock, time, ready);
  }
};

}  // namespace

Clock& Clock::system() {
  // Never destroyed: destructors of other static objects use it, as that of FunctionRegistration.
  static SystemClock& clock = *new SystemClock;
  return clock;
}

Deadline Deadline::after(Duration duration, const Clock& clock) {
  const TimePoint now = clock.now();
  return duration >= TimePoint::max() - now ? Deadline() : Deadline(now + duration);
}

Duration Deadline::remaining(const Clock& clock) const {
  if (is_infinite()) return Duration::max();
  const TimePoint now = clock.now();
  return time_ > now ? time_ - now : Duration::zero();  // the difference may be out of range
}

}  // namespace cohort
