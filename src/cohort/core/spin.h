// SPDX-License-Identifier: Apache-2.0
// Short waits for another thread or process, before the longer one in which this thread sleeps.
//
// Waking a thread takes tens of microseconds, and threads that run the same step meet sooner than
// that. But a thread that spins on a core keeps the thread for which it waits from running there,
// so the wait is short, and shorter still where there are more threads than cores. Each caller has
// times of its own, since they were measured: a look at a socket costs a system call, one at an
// atomic variable a few nanoseconds.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "cohort/core/clock.h"

namespace cohort {

// Whether the host has a core for each of these threads.
inline bool has_core_each(int num_threads) {
  static const unsigned num_cores = std::thread::hardware_concurrency();
  return static_cast<unsigned>(num_threads) <= num_cores;
}

// Leaves the core to the other thread that shares it in hardware.
struct PauseCore {
  void operator()() const {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
};

// Gives the core to another thread that is ready to run.
struct YieldCore {
  void operator()() const { std::this_thread::yield(); }
};

// Looks at most `times` times, and calls `between` after each look; returns whether is_ready()
// returned true.
template <class IsReady, class Between = PauseCore>
bool spin(int times, const IsReady& is_ready, const Between& between = {}) {
  for (int i = 0; i < times; ++i) {
    if (is_ready()) return true;
    between();
  }
  return false;
}

// The same for this time; looks at least once.
template <class IsReady, class Between = YieldCore>
bool spin_for(Duration time, const IsReady& is_ready, const Between& between = {}) {
  const TimePoint end = TimePoint::clock::now() + time;
  do {
    if (is_ready()) return true;
    between();
  } while (TimePoint::clock::now() < end);
  return false;
}

// The wait of threads or processes that meet over atomic variables: it spins and then yields, as
// long as yields are short. Between members of a group that share cores, a yield is the cheapest
// way to wait: each returns within some microseconds. On a busy machine it gives the core to
// another program for its whole time slice, milliseconds, while a thread that sleeps gets a core
// soon after it is woken. Thread-safe.
class BriefWait {
 public:
  explicit BriefWait(int num_threads) : num_spins_(has_core_each(num_threads) ? 2000 : 20) {}

  // Returns whether is_ready() returned true; if not, it is time to sleep.
  template <class IsReady, class Yield = YieldCore>
  bool wait(const IsReady& is_ready, const Yield& yield = {}) {
    if (spin(num_spins_, is_ready)) return true;
    TimePoint before = TimePoint::clock::now();
    for (int i = 0; i < kYields && before.time_since_epoch().count() >= not_before_; ++i) {
      yield();
      const TimePoint after = TimePoint::clock::now();
      if (after - before > kLong) not_before_ = (after + kPause).time_since_epoch().count();
      if (is_ready()) return true;
      before = after;
    }
    return false;
  }

 private:
  static constexpr int kYields = 20;
  static constexpr std::chrono::microseconds kLong{500};
  // After a long yield, so that long ones take at most a few hundredths of the time.
  static constexpr std::chrono::milliseconds kPause{100};

  const int num_spins_;
  std::atomic<Duration::rep> not_before_ = 0;
};

}  // namespace cohort
