// SPDX-License-Identifier: Apache-2.0
// Closures that wait until a caller's thread has traced for the element that their worker drew.
#include <gtest/gtest.h>

#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/coordinator/queue/queue_script.h"

namespace cohort::coordinator::internal {
namespace {

// One or more workers with one slot each.
class ClosureQueuePrograms : public ::testing::Test {
 protected:
  static QueueOptions one_slot() {
    QueueOptions options;
    options.in_flight_per_worker = 1;
    return options;
  }
  std::vector<ClosureId> waiting() const { return queue_.queue().waiting_for_program(); }

  QueueScript queue_{2, one_slot()};
};

TEST_F(ClosureQueuePrograms, AClosureWithoutAProgramFreesItsSlotAndStaysInFlight) {
  queue_.put_all({0, 1, 2});
  EXPECT_EQ(queue_.needs_program(0, 0), Lines({"trace for 0", "wake", "dispatch 2 to 0"}));
  EXPECT_EQ(queue_.queue().in_flight(), 3);
  EXPECT_EQ(waiting(), std::vector<ClosureId>({0}));
}

TEST_F(ClosureQueuePrograms, EveryCallerIsAskedToTraceFirst) {
  queue_.put(0);
  queue_.needs_program(0, 0);
  EXPECT_EQ(queue_.put(1), Lines());
  EXPECT_EQ(queue_.verdict(), "trace");
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "trace");
  queue_.done();
  EXPECT_EQ(queue_.verdict(), "trace");
  EXPECT_EQ(queue_.queue().queued(), 0);
}

TEST_F(ClosureQueuePrograms, ATracedClosureReturnsToTheWorkerThatHoldsItsElement) {
  queue_.put(0);
  queue_.needs_program(0, 0);
  EXPECT_EQ(queue_.traced(0), Lines({"dispatch 0 to 0"}));
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "wait");
  EXPECT_EQ(queue_.ok(0, 0), Lines({"complete 0", "wake"}));
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "proceed");
}

TEST_F(ClosureQueuePrograms, ATracedClosureWaitsForASlotBeforeTheQueue) {
  queue_.put_all({0, 1, 2, 3});
  queue_.needs_program(0, 0);  // 2 runs in its place
  EXPECT_EQ(queue_.traced(0), Lines());
  EXPECT_EQ(queue_.ok(1, 1), Lines({"complete 1", "dispatch 3 to 1"}));
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "wait");
  EXPECT_EQ(queue_.ok(2, 0), Lines({"complete 2", "dispatch 0 to 0"}));
}

TEST_F(ClosureQueuePrograms, TheElementIsLostWithItsWorker) {
  queue_.put_all({0, 1});
  queue_.needs_program(0, 0);
  EXPECT_EQ(queue_.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(waiting(), std::vector<ClosureId>({0}));
  queue_.ready(0);
  EXPECT_EQ(queue_.traced(0), Lines({"dispatch 0 to 0"}));
}

TEST_F(ClosureQueuePrograms, ATracedClosureOfALostWorkerGoesToTheFrontOfTheQueue) {
  queue_.put_all({0, 1});
  queue_.needs_program(0, 0);
  queue_.lost(0);
  EXPECT_EQ(queue_.traced(0), Lines());
  queue_.put(2);
  EXPECT_EQ(queue_.ok(1, 1), Lines({"complete 1", "dispatch 0 to 1"}));
}

TEST_F(ClosureQueuePrograms, ATracedClosureThatWaitsForASlotIsPutBackWithItsWorker) {
  queue_.put_all({0, 1, 2});
  queue_.needs_program(0, 0);
  queue_.traced(0);
  EXPECT_EQ(queue_.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(queue_.ok(1, 1), Lines({"complete 1", "dispatch 0 to 1"}));
  EXPECT_EQ(queue_.ok(0, 1), Lines({"complete 0", "dispatch 2 to 1"}));
}

TEST_F(ClosureQueuePrograms, AFailedTraceIsAnApplicationError) {
  queue_.put(0);
  queue_.needs_program(0, 0);
  EXPECT_EQ(queue_.not_traced(0, bad_value("control flow on data")),
            Lines({"fail 0 invalid_argument"}));
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "raise control flow on data");
}

TEST_F(ClosureQueuePrograms, CancelAllEndsParkedAndTracedClosures) {
  queue_.put_all({0, 1, 2, 3, 4});
  queue_.needs_program(0, 0);  // 2
  queue_.needs_program(1, 1);  // 3
  queue_.traced(0);
  queue_.failed(2, 0);  // 0 again
  queue_.needs_program(0, 0);
  EXPECT_EQ(queue_.join(),
            Lines({"fail 0 cancelled", "fail 1 cancelled", "cancel 3 on 1", "cancel 4 on 0"}));
  EXPECT_EQ(waiting(), std::vector<ClosureId>());
  EXPECT_EQ(queue_.traced(1), Lines());
  queue_.ok(3, 1);
  queue_.ok(4, 0);
  queue_.join();
  EXPECT_EQ(queue_.verdict(), "raise E");
}

TEST_F(ClosureQueuePrograms, AProgramMissedWhileCancellingCancels) {
  queue_.put_all({0, 1});
  queue_.failed(0, 0);
  queue_.join();
  EXPECT_EQ(queue_.needs_program(1, 1), Lines({"fail 1 cancelled", "wake"}));
}

TEST_F(ClosureQueuePrograms, TracingTwiceDoesNothing) {
  queue_.put(0);
  queue_.needs_program(0, 0);
  queue_.traced(0);
  EXPECT_EQ(queue_.traced(0), Lines());
  EXPECT_EQ(queue_.not_traced(0), Lines());
}

TEST_F(ClosureQueuePrograms, TheWatermarkWaitsForAParkedClosure) {
  queue_.put_all({0, 1});
  queue_.needs_program(0, 0);
  queue_.ok(1, 1);
  EXPECT_EQ(queue_.queue().low_watermark(), 0);
}

}  // namespace
}  // namespace cohort::coordinator::internal
