// SPDX-License-Identifier: Apache-2.0
// Waiting by giving the core to other threads, as long as these give it back soon.
//
// Between members of a group that share cores, a yield is the cheapest way to wait: each returns
// within some microseconds. On a busy machine it gives the core to another program for its whole
// time slice, milliseconds, while who sleeps gets a core soon after it is woken.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace cohort::collective {

// Thread-safe.
class BriefYields {
 public:
  // Returns whether is_done() returned true; if not, it is time to sleep.
  template <class IsDone, class Yield>
  bool wait(const IsDone& is_done, const Yield& yield) {
    TimePoint before = Clock::now();
    for (int i = 0; i < kYields && before.time_since_epoch().count() >= not_before_; ++i) {
      yield();
      const TimePoint after = Clock::now();
      if (after - before > kLong) not_before_ = (after + kPause).time_since_epoch().count();
      if (is_done()) return true;
      before = after;
    }
    return false;
  }
  template <class IsDone>
  bool wait(const IsDone& is_done) {
    return wait(is_done, [] { std::this_thread::yield(); });
  }

 private:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  static constexpr int kYields = 20;
  static constexpr std::chrono::microseconds kLong{500};
  // After a long yield, so that long ones take at most a few hundredths of the time.
  static constexpr std::chrono::milliseconds kPause{100};

  std::atomic<Clock::rep> not_before_ = 0;
};

}  // namespace cohort::collective
