// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/fake_clock.h"

namespace cohort::testing {
namespace {

// advance() cannot lock the waiters' mutexes, so it could notify a waiter between its check of the
// clock and its wait. Therefore waiters poll the clock at this interval of real time.
constexpr std::chrono::milliseconds kLookAgain{1};

}  // namespace

TimePoint FakeClock::now() const {
  const std::lock_guard lock(mutex_);
  return now_;
}

bool FakeClock::wait_until(std::unique_lock<std::mutex>& lock, std::condition_variable& changed,
                           TimePoint time, const std::function<bool()>& ready) {
  const Waiting waiting(*this);
  while (!ready()) {
    if (time != TimePoint::max() && now() >= time) return false;
    changed.wait_for(lock, kLookAgain);
  }
  return true;
}

void FakeClock::advance(Duration duration) {
  const std::lock_guard lock(mutex_);
  now_ += duration;
}

bool FakeClock::await_waiters(int count) const {
  std::unique_lock lock(mutex_);
  return waiters_changed_.wait_for(lock, std::chrono::seconds(10),
                                   [&] { return waiters_ >= count; });
}

FakeClock::Waiting::Waiting(FakeClock& clock) : clock_(clock) {
  const std::lock_guard lock(clock_.mutex_);
  ++clock_.waiters_;
  clock_.waiters_changed_.notify_all();
}

FakeClock::Waiting::~Waiting() {
  const std::lock_guard lock(clock_.mutex_);
  --clock_.waiters_;
}

}  // namespace cohort::testing
