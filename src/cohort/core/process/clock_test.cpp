// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/clock.h"

#include <gtest/gtest.h>

#include <future>

#include "cohort/core/mutex.h"
#include "cohort/testing/fake_clock.h"

namespace cohort {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Deadline, NeverExpiresByDefault) {
  testing::FakeClock clock;
  clock.advance(hours(100000));
  EXPECT_TRUE(Deadline().is_infinite());
  EXPECT_FALSE(Deadline().has_expired(clock));
  EXPECT_EQ(Deadline().remaining(clock), Duration::max());
}

TEST(Deadline, ExpiresExactlyAtItsTime) {
  testing::FakeClock clock;
  const Deadline deadline = Deadline::after(seconds(10), clock);
  clock.advance(seconds(10) - Duration(1));
  EXPECT_FALSE(deadline.has_expired(clock));
  EXPECT_EQ(deadline.remaining(clock), Duration(1));
  clock.advance(Duration(1));
  EXPECT_TRUE(deadline.has_expired(clock));
}

TEST(Deadline, HasNothingLeftOnceExpired) {
  testing::FakeClock clock;
  const Deadline deadline = Deadline::after(seconds(1), clock);
  clock.advance(seconds(5));
  EXPECT_EQ(deadline.remaining(clock), Duration::zero());
}

// Regression: the difference was out of range, so a wait that was to return at once did not end.
TEST(Deadline, HasNothingLeftOfTheEarliestTime) {
  testing::FakeClock clock;
  clock.advance(seconds(5));
  EXPECT_EQ(Deadline(TimePoint::min()).remaining(clock), Duration::zero());
}

TEST(Deadline, AfterAnEndlessTimeIsInfinite) {
  testing::FakeClock clock;
  EXPECT_TRUE(Deadline::after(Duration::max(), clock).is_infinite());
}

TEST(SystemClock, DoesNotWaitForWhatHasPassed) {
  Mutex mutex;
  Condition changed;
  const Lock lock(mutex);
  EXPECT_FALSE(changed.wait(mutex, Deadline::after(seconds(-1)), [] { return false; }));
  EXPECT_FALSE(changed.wait(mutex, Deadline::after(milliseconds(1)), [] { return false; }));
  EXPECT_TRUE(changed.wait(mutex, Deadline(), [] { return true; }));
}

// One thread waits on a flag, the test moves the clock or the flag.
class FakeClockWait : public ::testing::Test {
 protected:
  std::future<bool> wait(Deadline deadline) {
    auto result = std::async(std::launch::async, [this, deadline] {
      const Lock lock(mutex);
      return changed.wait(
          mutex, deadline, [this] { return is_set; }, clock);
    });
    EXPECT_TRUE(clock.await_waiters(1));
    return result;
  }
  void set_flag() {
    const Lock lock(mutex);
    is_set = true;
    changed.notify_all();
  }

  testing::FakeClock clock;
  Mutex mutex;
  Condition changed;
  bool is_set = false;
};

TEST_F(FakeClockWait, EndsWhenTheClockPassesTheDeadline) {
  std::future<bool> result = wait(Deadline::after(seconds(10), clock));
  clock.advance(seconds(9));
  EXPECT_EQ(result.wait_for(milliseconds(20)), std::future_status::timeout);
  clock.advance(seconds(1));
  EXPECT_FALSE(result.get());
}

TEST_F(FakeClockWait, EndsWhenReadyThoughTheClockStands) {
  std::future<bool> result = wait(Deadline::after(seconds(10), clock));
  set_flag();
  EXPECT_TRUE(result.get());
}

TEST_F(FakeClockWait, EndsWhenReadyWithoutADeadline) {
  std::future<bool> result = wait(Deadline());
  clock.advance(hours(1000));
  set_flag();
  EXPECT_TRUE(result.get());
}

TEST_F(FakeClockWait, PrefersReadyToExpired) {
  set_flag();
  const Lock lock(mutex);
  EXPECT_TRUE(changed.wait(
      mutex, Deadline(clock.now()), [this] { return is_set; }, clock));
}

}  // namespace
}  // namespace cohort
