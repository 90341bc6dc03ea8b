// SPDX-License-Identifier: Apache-2.0
// The queue's part of ScheduleOptions: priorities, and ends at deadlines; and its pauses.
#include <gtest/gtest.h>

#include "cohort/coordinator/queue/queue_script.h"

namespace cohort::coordinator::internal {
namespace {

QueueOptions one_at_a_time() { return {.in_flight_per_worker = 1}; }

TEST(ClosureQueuePriority, OfThoseThatWaitTheHighestRunsFirst) {
  QueueScript queue(1, one_at_a_time());
  queue.put(0);
  queue.put(1);
  queue.put(2, -1);
  queue.put(3, 5);
  queue.put(4, 5);
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 3 to 0"}));
  EXPECT_EQ(queue.ok(3, 0), Lines({"complete 3", "dispatch 4 to 0"}));
  EXPECT_EQ(queue.ok(4, 0), Lines({"complete 4", "dispatch 1 to 0"}));
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2"}));
}

TEST(ClosureQueuePriority, ARetriedOneGoesBeforeThoseOfItsPriorityAlone) {
  QueueScript queue(2, one_at_a_time());
  queue.put(0);
  queue.put(1);
  queue.put(2);
  queue.put(3, 1);
  EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(queue.ok(1, 1), Lines({"complete 1", "dispatch 3 to 1"}));
  EXPECT_EQ(queue.ok(3, 1), Lines({"complete 3", "dispatch 0 to 1"}));
}

TEST(ClosureQueuePriority, DecidesBetweenOwnClosuresAndOthers) {
  QueueScript queue(1, one_at_a_time());
  queue.put_on(0, 0);
  queue.put_on(0, 1);
  queue.put_on(0, 2, 2);
  queue.put(3, 1);
  queue.put(4, 3);
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 4 to 0"}));
  EXPECT_EQ(queue.ok(4, 0), Lines({"complete 4", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "dispatch 3 to 0"}));
  EXPECT_EQ(queue.ok(3, 0), Lines({"complete 3", "dispatch 1 to 0"}));
}

TEST(ClosureQueueDeadline, OneThatWaitsLeavesTheQueueAndTheOthersGoOn) {
  QueueScript queue(1, one_at_a_time());
  queue.put_all({0, 1, 2});
  EXPECT_EQ(queue.expire(1), Lines({"fail 1 deadline_exceeded"}));
  EXPECT_EQ(queue.expire(1), Lines()) << "it has ended";
  queue.join();
  EXPECT_EQ(queue.verdict(), "wait");
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 2 to 0"}));
  queue.put(3);
  EXPECT_EQ(queue.verdict(), "proceed") << "schedule() does not throw it";
  queue.done();
  EXPECT_EQ(queue.verdict(), "no");
  queue.ok(2, 0);
  EXPECT_EQ(queue.ok(3, 0), Lines({"complete 3", "wake"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise late 1");
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueDeadline, OneThatRunsIsCancelledAndNotRetried) {
  QueueScript queue(2, one_at_a_time());
  queue.put_all({0, 1});
  EXPECT_EQ(queue.expire(0), Lines({"cancel 0 on 0"}));
  EXPECT_EQ(queue.cancelled(0, 0), Lines({"fail 0 deadline_exceeded"}));
  EXPECT_EQ(queue.expire(1), Lines({"cancel 1 on 1"}));
  EXPECT_EQ(queue.lost(1), Lines({"fail 1 deadline_exceeded", "recover 1"}));
  queue.done();
  EXPECT_EQ(queue.verdict(), "raise late 0") << "the first one";
}

TEST(ClosureQueueDeadline, OneThatEndsWellAllTheSameIsComplete) {
  QueueScript queue(1, one_at_a_time());
  queue.put(0);
  queue.expire(0);
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise late 0");
}

TEST(ClosureQueueDeadline, NoTraceIsMadeForOneThatHasExpired) {
  QueueScript queue(1, one_at_a_time());
  queue.put(0);
  queue.needs_program(0, 0);
  EXPECT_EQ(queue.expire(0), Lines({"fail 0 deadline_exceeded"}));
  EXPECT_FALSE(queue.queue().has_waiting_for_program());
  EXPECT_EQ(queue.traced(0), Lines());
}

TEST(ClosureQueueDeadline, AnotherErrorIsRaisedInItsPlace) {
  QueueScript queue(2, one_at_a_time());
  queue.put_all({0, 1});
  queue.expire(0);
  queue.cancelled(0, 0);
  queue.failed(1, 1);
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise E");
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueDeadline, MakesRoomInAFullQueue) {
  QueueScript queue(1, {.capacity = 1, .in_flight_per_worker = 1});
  queue.put_all({0, 1});
  queue.put(2);
  EXPECT_EQ(queue.verdict(), "wait");
  EXPECT_EQ(queue.expire(1), Lines({"fail 1 deadline_exceeded", "wake"}));
  queue.put(2);
  EXPECT_EQ(queue.verdict(), "proceed");
}

// A closure that has left the queue must not stay in its memory until it comes first.
TEST(ClosureQueueDeadline, ManyMayExpireWhileNoWorkerIsReady) {
  ClosureQueue queue({.capacity = 0}, 1);
  Actions actions;
  const Error late(ErrorCode::deadline_exceeded, "late");
  for (ClosureId closure = 0; closure < 10000; ++closure) {
    queue.put(closure, actions, closure % 7 == 0 ? 1 : 0);
    if (closure % 100 != 0) queue.expire(closure, late, actions);
  }
  EXPECT_EQ(queue.queued(), 100U);
  actions.clear();
  queue.set_in_flight(0, 200, actions);
  queue.worker_ready(0, actions);
  EXPECT_EQ(actions.size(), 100U);
  EXPECT_EQ(lines_of(actions).at(1), "dispatch 700 to 0");
}

TEST(ClosureQueuePause, NothingBeginsUntilItHasEndedAsOftenAsItBegan) {
  QueueScript queue(2, one_at_a_time());
  queue.put_all({0, 1, 2});
  queue.pause();
  queue.pause();
  EXPECT_EQ(queue.put(3), Lines());
  EXPECT_EQ(queue.put_on(1, 4), Lines());
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0"}));
  EXPECT_EQ(queue.queue().running(), 1U);
  EXPECT_EQ(queue.needs_program(1, 1), Lines({"trace for 1", "wake"}));
  EXPECT_EQ(queue.queue().running(), 0U);
  EXPECT_EQ(queue.traced(1), Lines());
  EXPECT_EQ(queue.lost(0).size(), 1U);
  EXPECT_EQ(queue.ready(0), Lines());
  EXPECT_EQ(queue.resume(), Lines());
  EXPECT_EQ(queue.resume(), Lines({"dispatch 1 to 1", "dispatch 2 to 0"}));
}

}  // namespace
}  // namespace cohort::coordinator::internal
