// SPDX-License-Identifier: Apache-2.0
// Closures that belong to one worker: the steps of epochs.
#include <gtest/gtest.h>

#include "cohort/coordinator/queue/queue_script.h"

namespace cohort::coordinator::internal {
namespace {

TEST(ClosureQueueOwn, RunOnTheirWorkerAloneInTheOrderOfTheirIds) {
  QueueScript queue(2, {.in_flight_per_worker = 1});
  EXPECT_EQ(queue.put_on(1, 1), Lines({"dispatch 1 to 1"}));
  EXPECT_EQ(queue.put_on(1, 2), Lines());
  EXPECT_EQ(queue.put_on(1, 3), Lines());
  EXPECT_EQ(queue.ok(1, 1), Lines({"complete 1", "dispatch 2 to 1"}));
  EXPECT_EQ(queue.ok(2, 1), Lines({"complete 2", "dispatch 3 to 1"}));
}

TEST(ClosureQueueOwn, GoBeforeThoseThatAnyWorkerMayRun) {
  QueueScript queue(1, {.in_flight_per_worker = 1});
  queue.put_all({1, 2});
  EXPECT_EQ(queue.put_on(0, 3), Lines());
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1", "dispatch 3 to 0"}));
  EXPECT_EQ(queue.ok(3, 0), Lines({"complete 3", "dispatch 2 to 0"}));
}

// Regression: other closures ran only if the worker had no own ones queued, at the end of an epoch.
TEST(ClosureQueueOwn, TakeTurnsWithThoseThatAnyWorkerMayRun) {
  QueueScript queue(1, {.in_flight_per_worker = 1});
  for (ClosureId closure = 1; closure < 4; ++closure) queue.put_on(0, closure);
  queue.put_all({4, 5});
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1", "dispatch 4 to 0"}));
  EXPECT_EQ(queue.ok(4, 0), Lines({"complete 4", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "dispatch 5 to 0"}));
  EXPECT_EQ(queue.ok(5, 0), Lines({"complete 5", "dispatch 3 to 0"}));
}

TEST(ClosureQueueOwn, WaitForTheirLostWorker) {
  QueueScript queue(2, {.in_flight_per_worker = 2});
  queue.put_on(1, 1);
  queue.put_on(1, 2);
  queue.put_on(1, 3);
  EXPECT_EQ(queue.lost(1), Lines({"recover 1"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "wait");
  EXPECT_EQ(queue.ready(1), Lines({"dispatch 1 to 1", "dispatch 2 to 1"}));
}

TEST(ClosureQueueOwn, ReturnToTheirWorkerWhenTheyAreRetried) {
  QueueScript queue(2, {.in_flight_per_worker = 1});
  queue.put_on(1, 1);
  queue.put_on(1, 2);
  EXPECT_EQ(queue.cancelled(1, 1), Lines({"dispatch 1 to 1"})) << "before the later one";
}

TEST(ClosureQueueOwn, WaitForAProgramAsOthers) {
  QueueScript queue(2, {.in_flight_per_worker = 1});
  queue.put_on(1, 1);
  EXPECT_EQ(queue.needs_program(1, 1), Lines({"trace for 1", "wake"}));
  queue.lost(1);
  EXPECT_EQ(queue.traced(1), Lines());
  EXPECT_EQ(queue.ready(1), Lines({"dispatch 1 to 1"}));
}

TEST(ClosureQueueOwn, TakeNoRoomInTheQueue) {
  QueueScript queue(1, {.capacity = 1, .in_flight_per_worker = 1});
  for (ClosureId closure = 1; closure < 5; ++closure) queue.put_on(0, closure);
  queue.put(5);
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueOwn, AreCancelledWithAllOthers) {
  QueueScript queue(2, {.in_flight_per_worker = 1});
  for (ClosureId closure = 1; closure < 4; ++closure) queue.put_on(0, closure);
  EXPECT_EQ(queue.failed(1, 0), Lines({"fail 1 invalid_argument", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.join(), Lines({"cancel 2 on 0"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "fail 3 cancelled", "wake"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise E");
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueOwn, EndWhenTheyAreWithdrawn) {
  QueueScript queue(1, {.in_flight_per_worker = 1});
  queue.put_on(0, 1);
  queue.put_on(0, 2);
  EXPECT_EQ(queue.withdraw(2), Lines({"fail 2 cancelled"}));
  EXPECT_EQ(queue.withdraw(1), Lines({"cancel 1 on 0"})) << "it was sent";
  EXPECT_EQ(queue.withdraw(1), Lines()) << "cancelled once";
  EXPECT_EQ(queue.lost(0), Lines({"fail 1 cancelled", "recover 0"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed") << "nothing waits for the lost worker";
}

TEST(ClosureQueueOwn, EndWhenTheirWorkerHasCancelledThem) {
  QueueScript queue(1, {.in_flight_per_worker = 2, .max_attempts = 1});
  queue.put_on(0, 1);
  queue.put_on(0, 2);
  queue.withdraw(1);
  queue.withdraw(2);
  EXPECT_EQ(queue.cancelled(1, 0), Lines({"fail 1 cancelled"})) << "no error for join()";
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2"})) << "it had started";
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

// Regression: join() traced the step of an epoch that was destroyed, and ran it.
TEST(ClosureQueueOwn, AreTracedNoMoreWhenTheyAreWithdrawn) {
  QueueScript queue(1, {.in_flight_per_worker = 2});
  queue.put_on(0, 1);
  queue.put_on(0, 2);
  queue.needs_program(1, 0);
  EXPECT_EQ(queue.withdraw(1), Lines({"fail 1 cancelled"}));
  EXPECT_FALSE(queue.queue().has_waiting_for_program());
  EXPECT_EQ(queue.traced(1), Lines());
  queue.withdraw(2);
  EXPECT_EQ(queue.needs_program(2, 0), Lines({"fail 2 cancelled"})) << "its element came later";
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueOwn, WaitForNoSlotWhenTheyAreWithdrawn) {
  QueueScript queue(1, {.in_flight_per_worker = 1});
  queue.put_on(0, 1);
  queue.put_on(0, 2);
  queue.needs_program(1, 0);  // 2 runs in its place
  queue.traced(1);
  EXPECT_EQ(queue.withdraw(1), Lines({"fail 1 cancelled"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2"}));
  EXPECT_EQ(queue.queue().in_flight(), 0);
}

}  // namespace
}  // namespace cohort::coordinator::internal
