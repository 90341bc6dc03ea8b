// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/in_flight_window.h"

#include <gtest/gtest.h>

namespace cohort::coordinator::internal {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Simulates a worker that runs closures one after the other, each for `service`, over a link with
// this `round_trip`.
class SimulatedWorker {
 public:
  explicit SimulatedWorker(std::size_t fixed = 0) : window(fixed) {}

  // There are always more closures: each report covers all that were in flight.
  void run(int reports, Duration service, Duration round_trip = microseconds(40)) {
    for (int i = 0; i < reports; ++i) {
      while (window.in_flight() < window.size()) window.sent(now_);
      const std::size_t count = window.in_flight();
      now_ += round_trip + service * static_cast<Duration::rep>(count);
      window.ended(count, now_);
    }
  }
  // One closure at a time, with `idle` time between closures.
  void run_alone(int closures, Duration service, Duration idle) {
    for (int i = 0; i < closures; ++i) {
      window.sent(now_);
      now_ += service;
      window.ended(1, now_);
      now_ += idle;
    }
  }

  InFlightWindow window;

 private:
  TimePoint now_{};
};

TEST(InFlightWindow, StartsSmall) { EXPECT_EQ(InFlightWindow().size(), 4U); }

TEST(InFlightWindow, WidensForShortClosuresUpToItsBound) {
  SimulatedWorker worker;
  worker.run(1, microseconds(2));
  EXPECT_EQ(worker.window.size(), 8U);
  worker.run(10, microseconds(2));
  EXPECT_EQ(worker.window.size(), 128U);
}

TEST(InFlightWindow, StaysSmallForLongClosures) {
  SimulatedWorker worker;
  worker.run(20, milliseconds(3));
  EXPECT_EQ(worker.window.size(), 4U);
}

TEST(InFlightWindow, HoldsAMillisecondOfWork) {
  SimulatedWorker worker;
  worker.run(20, microseconds(50), Duration::zero());
  EXPECT_EQ(worker.window.size(), 20U);
}

TEST(InFlightWindow, ShrinksWhenClosuresBecomeLong) {
  SimulatedWorker worker;
  worker.run(20, microseconds(2));
  worker.run(5, milliseconds(2));
  EXPECT_EQ(worker.window.size(), 4U);
}

TEST(InFlightWindow, OneInterruptionHalvesItAtMost) {
  SimulatedWorker worker;
  worker.run(20, microseconds(2));
  worker.run(1, microseconds(2), milliseconds(500));
  EXPECT_EQ(worker.window.size(), 64U);
}

TEST(InFlightWindow, TimeWithoutWorkDoesNotCount) {
  SimulatedWorker worker;
  worker.run_alone(100, microseconds(20), std::chrono::seconds(1));
  EXPECT_EQ(worker.window.size(), 50U);
}

TEST(InFlightWindow, ALostWorkerIsUnknownAgain) {
  SimulatedWorker worker;
  worker.run(20, microseconds(2));
  worker.window.sent({});
  worker.window.reset();
  EXPECT_EQ(worker.window.size(), 4U);
  EXPECT_EQ(worker.window.in_flight(), 0U);
}

TEST(InFlightWindow, AFixedOneStays) {
  SimulatedWorker worker(7);
  worker.run(20, microseconds(2));
  worker.run(20, milliseconds(20));
  EXPECT_EQ(worker.window.size(), 7U);
}

TEST(InFlightWindow, ShortClosuresWaitWhileTheWorkerHasOthers) {
  for (const std::size_t fixed : {0, 64}) {
    SimulatedWorker worker(fixed);
    worker.run(20, microseconds(2));
    for (int i = 0; i < 17; ++i) worker.window.sent({});
    EXPECT_TRUE(worker.window.can_wait(1));
    EXPECT_TRUE(worker.window.can_wait(15));
    EXPECT_FALSE(worker.window.can_wait(16));
    worker.window.ended(14, {});
    EXPECT_TRUE(worker.window.can_wait(2));
    EXPECT_FALSE(worker.window.can_wait(3)) << "no report would come";
  }
}

// Otherwise each closure would wait for a report and a round trip, while its worker is idle.
TEST(InFlightWindow, ClosuresOfMiddleLengthWaitOnlyBehindFour) {
  for (const std::size_t fixed : {0, 64}) {
    SimulatedWorker worker(fixed);
    worker.run(20, microseconds(100));
    for (int i = 0; i < 5; ++i) worker.window.sent({});
    EXPECT_TRUE(worker.window.can_wait(1));
    EXPECT_FALSE(worker.window.can_wait(2));
  }
  SimulatedWorker one_ahead(2);
  one_ahead.run(20, microseconds(100));
  one_ahead.window.sent({});
  one_ahead.window.sent({});
  EXPECT_FALSE(one_ahead.window.can_wait(1));
}

TEST(InFlightWindow, LongClosuresDoNotWait) {
  for (const std::size_t fixed : {0, 64}) {
    SimulatedWorker worker(fixed);
    worker.run(20, milliseconds(3));
    for (int i = 0; i < 3; ++i) worker.window.sent({});
    EXPECT_FALSE(worker.window.can_wait(1));
  }
}

TEST(InFlightWindow, MoreEndsThanSentAreHarmless) {
  InFlightWindow window;
  window.ended(3, TimePoint{});
  EXPECT_EQ(window.in_flight(), 0U);
  EXPECT_LE(window.size(), 8U);
}

}  // namespace
}  // namespace cohort::coordinator::internal
