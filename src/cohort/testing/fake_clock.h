// SPDX-License-Identifier: Apache-2.0
// A clock that moves only when a test advances it.
//
//   std::thread waiter([&] { queue.take(Deadline::after(10s, clock)); });
//   clock.await_waiters(1);  // take() waits now
//   clock.advance(10s);      // and its deadline expires
#pragma once

#include "cohort/core/clock.h"

namespace cohort::testing {

// Thread-safe. Waiters wake when advance() passes their time.
class FakeClock final : public Clock {
 public:
  TimePoint now() const override;
  bool wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                  TimePoint time, const std::function<bool()>& ready) override;
  void advance(Duration duration);
  // Blocks until `count` threads are inside wait_until(); returns false after 10 s.
  bool await_waiters(int count) const;

 private:
  // Counts its thread as a waiter while it exists.
  class Waiting {
   public:
    explicit Waiting(FakeClock& clock);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    FakeClock& clock_;
  };

  mutable std::mutex mutex_;
  mutable std::condition_variable waiters_changed_;
  TimePoint now_{std::chrono::seconds(1000)};
  int waiters_ = 0;
};

}  // namespace cohort::testing
