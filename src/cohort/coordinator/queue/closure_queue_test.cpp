// SPDX-License-Identifier: Apache-2.0
// The queue as the runtime uses it: dispatch, error propagation (spec/strategy.md 5.4), classes of
// failure (5.5) and worker loss (5.6). closure_table_test.cpp tests the table itself.
#include "cohort/coordinator/queue/closure_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/coordinator/queue/queue_script.h"
#include "cohort/testing/throws_error.h"

namespace cohort::coordinator::internal {
namespace {

using std::chrono::minutes;

QueueOptions one_slot() {
  QueueOptions options;
  options.in_flight_per_worker = 1;
  return options;
}

Error ps_unreachable(int index) {
  return connection_lost("ps:" + std::to_string(index)).during("pull");
}
Error timeout() { return Error(ErrorCode::deadline_exceeded, "too late").at("worker:0"); }

// ---- dispatch

TEST(ClosureQueueDispatch, AClosureGoesToAReadyWorkerAtOnce) {
  QueueScript queue(1);
  EXPECT_EQ(queue.put(0), Lines({"dispatch 0 to 0"}));
  EXPECT_EQ(queue.verdict(), "proceed");
  EXPECT_EQ(queue.queue().in_flight(), 1);
}

TEST(ClosureQueueDispatch, NothingStartsBeforeAWorkerIsReady) {
  QueueScript queue(1);
  ClosureQueue cold({}, 2);
  Actions actions;
  cold.put(0, actions);
  cold.put(1, actions);
  EXPECT_TRUE(actions.empty());
  cold.worker_ready(1, actions);
  EXPECT_EQ(lines_of(actions), Lines({"dispatch 0 to 1", "dispatch 1 to 1"}));
}

TEST(ClosureQueueDispatch, TheLeastLoadedWorkerIsFirst) {
  QueueScript queue(2);
  EXPECT_EQ(queue.put_all({0, 1, 2}),
            Lines({"dispatch 0 to 0", "dispatch 1 to 1", "dispatch 2 to 0"}));
  queue.ok(0, 0);
  queue.ok(2, 0);
  EXPECT_EQ(queue.put_all({3, 4}), Lines({"dispatch 3 to 0", "dispatch 4 to 1"}));
}

// Otherwise one closure at a time would leave all workers but one without work, and their data
// unread.
TEST(ClosureQueueDispatch, EquallyLoadedWorkersTakeTurns) {
  QueueScript queue(2);
  EXPECT_EQ(queue.put(0), Lines({"dispatch 0 to 0"}));
  queue.ok(0, 0);
  EXPECT_EQ(queue.put(1), Lines({"dispatch 1 to 1"}));
  queue.ok(1, 1);
  EXPECT_EQ(queue.put(2), Lines({"dispatch 2 to 0"}));
}

TEST(ClosureQueueDispatch, AWorkerHasAtMostItsSlotsInFlight) {
  QueueScript queue(1);
  queue.put_all({0, 1, 2, 3, 4});
  EXPECT_EQ(queue.queue().in_flight(), 4);
  EXPECT_EQ(queue.queue().queued(), 1);
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "dispatch 4 to 0"}));
}

TEST(ClosureQueueDispatch, AWiderLimitIsFilledAtOnce) {
  QueueScript queue(1, one_slot());
  queue.put_all({0, 1, 2, 3});
  EXPECT_EQ(queue.set_in_flight(0, 3), Lines({"dispatch 1 to 0", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 3 to 0"}));
}

TEST(ClosureQueueDispatch, ANarrowerLimitLeavesWhatIsThere) {
  QueueScript queue(1);
  queue.put_all({0, 1, 2, 3, 4});
  EXPECT_EQ(queue.set_in_flight(0, 2), Lines());
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0"}));
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "dispatch 4 to 0"}));
}

TEST(ClosureQueueDispatch, ALimitIsOneWorkersOwn) {
  QueueScript queue(2, one_slot());
  queue.set_in_flight(1, 2);
  queue.put_all({0, 1, 2, 3});
  EXPECT_EQ(queue.queue().in_flight(), 3);
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 3 to 0"}));
}

TEST(ClosureQueueDispatch, AnEndThatIsNotAwaitedIsIgnored) {
  QueueScript queue(2, one_slot());
  queue.put_all({0, 1, 2});
  EXPECT_EQ(queue.ok(0, 1), Lines());
  EXPECT_EQ(queue.ok(2, 0), Lines());
  EXPECT_EQ(queue.ok(9, 0), Lines());
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(0, 0), Lines());
}

TEST(ClosureQueueDispatch, OptionsThatCannotWorkAreRefused) {
  const auto refused = [](const std::string& words) {
    return testing::throws_error(ErrorCode::invalid_argument, words);
  };
  EXPECT_THAT([] { ClosureQueue({}, 0); }, refused("at least one worker"));
  EXPECT_THAT([] { ClosureQueue({.in_flight_per_worker = 0}, 1); },
              refused("in_flight_per_worker > 0"));
  EXPECT_THAT([] { ClosureQueue({.max_attempts = 0}, 1); }, refused("max_attempts > 0"));
}

// ---- application errors (5.4)

// 5.4.1
TEST(ClosureQueueErrors, WorkersGoOnUntilACallerSeesTheFirstError) {
  QueueScript queue(1, one_slot());
  queue.put_all({0, 1, 2});
  EXPECT_EQ(queue.failed(0, 0, bad_value("first")),
            Lines({"fail 0 invalid_argument", "dispatch 1 to 0"}));
  EXPECT_EQ(queue.failed(1, 0, bad_value("second")),
            Lines({"fail 1 invalid_argument", "dispatch 2 to 0"}));
  queue.join();
  queue.ok(2, 0);
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise first");
}

// 5.4.2
TEST(ClosureQueueErrors, ACallerCancelsAllWaitsAndRaisesOnce) {
  QueueScript queue(2, one_slot());
  queue.put_all({0, 1, 2, 3});
  queue.failed(0, 0);  // 2 starts in its place
  EXPECT_EQ(queue.join(), Lines({"cancel 1 on 1", "cancel 2 on 0"}));
  EXPECT_EQ(queue.verdict(), "wait");
  EXPECT_EQ(queue.cancelled(1, 1), Lines({"fail 1 cancelled"}));
  EXPECT_EQ(queue.cancelled(2, 0), Lines({"fail 2 cancelled", "fail 3 cancelled", "wake"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise E");
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueErrors, TheQueueIsUsableAfterwards) {
  QueueScript queue(1);
  queue.put(0);
  queue.failed(0, 0);
  queue.put(1);
  EXPECT_EQ(queue.verdict(), "raise E");
  EXPECT_EQ(queue.put(2), Lines({"dispatch 2 to 0"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2"}));
  queue.done();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueErrors, ScheduleWaitsForWhatRunsBeforeItRaises) {
  QueueScript queue(2);
  queue.put_all({0, 1});
  queue.failed(0, 0);
  EXPECT_EQ(queue.put(2), Lines({"cancel 1 on 1"}));
  EXPECT_EQ(queue.verdict(), "wait");
  EXPECT_EQ(queue.ok(1, 1), Lines({"complete 1", "fail 2 cancelled", "wake"}));
  queue.put(2);
  EXPECT_EQ(queue.verdict(), "raise E");
}

TEST(ClosureQueueErrors, NothingStartsWhileAllIsCancelled) {
  QueueScript queue(2, one_slot());
  queue.put_all({0, 1, 2, 3});
  queue.failed(0, 0);
  queue.join();
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2"}));
  EXPECT_EQ(queue.ready(0), Lines());
}

// 5.4.3
TEST(ClosureQueueErrors, ARunningClosureMayStillEndAsItLikes) {
  QueueScript queue(1);
  queue.put_all({0, 1, 2, 3});
  queue.failed(0, 0, bad_value("first"));
  queue.join();
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1"}));
  EXPECT_EQ(queue.failed(2, 0, bad_value("own")), Lines({"fail 2 invalid_argument"}));
  EXPECT_EQ(queue.last_actions().front().error->message(), "own");
  EXPECT_EQ(queue.cancelled(3, 0), Lines({"fail 3 cancelled", "wake"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise first");
}

// 5.4.4
TEST(ClosureQueueErrors, TheFailingClosureHoldsItsOwnErrorBeforeAnybodyAsks) {
  QueueScript queue(1);
  queue.put(0);
  EXPECT_EQ(queue.failed(0, 0, bad_value("mine")), Lines({"fail 0 invalid_argument"}));
  EXPECT_EQ(queue.last_actions().front().error->message(), "mine");
  queue.done();
  EXPECT_EQ(queue.verdict(), "raise mine");
}

// 5.4.5
TEST(ClosureQueueErrors, ACancelledClosureIsNotPutBackOnceThereIsAnError) {
  QueueScript queue(1);
  queue.put_all({0, 1});
  queue.failed(0, 0);
  const Error by_job(ErrorCode::cancelled, "cancelled", ErrorCause::cancelled_by_job);
  EXPECT_EQ(queue.failed(1, 0, by_job), Lines({"fail 1 cancelled"}));
}

// 5.4.7
TEST(ClosureQueueErrors, ABrokenInputResourceIsAnApplicationError) {
  QueueScript queue(1);
  queue.put(0);
  const Error broken =
      Error(ErrorCode::invalid_argument, "no such file", ErrorCause::closure_input).at("worker:0");
  EXPECT_EQ(queue.failed(0, 0, broken), Lines({"fail 0 invalid_argument"}));
  queue.join();
  EXPECT_EQ(queue.raised().cause(), ErrorCause::closure_input);
}

// 5.4.8
TEST(ClosureQueueErrors, TheEndOfTheDataIsAnApplicationError) {
  QueueScript queue(1);
  queue.put(0);
  queue.failed(0, 0, Error(ErrorCode::out_of_range, "end of data").at("worker:0"));
  queue.join();
  EXPECT_EQ(queue.raised().code(), ErrorCode::out_of_range);
}

// ---- classes of failure (5.5)

TEST(ClosureQueueFailures, ThePsReportThatReachesTheLimitIsFatal) {
  QueueScript queue(1, one_slot());
  queue.put(0);
  EXPECT_EQ(queue.failed(0, 0, ps_unreachable(0)), Lines({"dispatch 0 to 0"}));
  EXPECT_EQ(queue.failed(0, 0, ps_unreachable(0)), Lines({"dispatch 0 to 0"}));
  EXPECT_EQ(queue.failed(0, 0, ps_unreachable(0)), Lines({"fail 0 unavailable"}));
  queue.join();
  EXPECT_EQ(queue.raised().code(), ErrorCode::unavailable);
  EXPECT_EQ(queue.raised().origin(), "ps:0");
}

TEST(ClosureQueueFailures, ALostPsIsUnavailableWhateverItsCodeWas) {
  QueueScript queue(1, {.failures = {.ps_failures_max = 0}});
  queue.put(0);
  const Error aborted = Error(ErrorCode::aborted, "gone").at("ps:2", 7).during("push");
  EXPECT_EQ(queue.failed(0, 0, aborted), Lines({"fail 0 unavailable"}));
  queue.join();
  EXPECT_EQ(queue.raised().origin(), "ps:2");
  EXPECT_EQ(queue.raised().incarnation(), 7);
  EXPECT_EQ(queue.raised().context(),
            std::vector<std::string>({"push", "running a closure on worker:0"}));
}

TEST(ClosureQueueFailures, PsReportsAreForgottenAfterTheWindow) {
  QueueScript queue(1, one_slot());
  queue.put(0);
  for (int report = 0; report < 10; ++report) {
    EXPECT_EQ(queue.failed(0, 0, ps_unreachable(0)), Lines({"dispatch 0 to 0"}));
    queue.advance(minutes(6));
  }
}

TEST(ClosureQueueFailures, ATransientFailureGoesToTheTail) {
  QueueScript queue(1, one_slot());
  queue.put_all({0, 1});
  EXPECT_EQ(queue.failed(0, 0, ps_unreachable(0)), Lines({"dispatch 1 to 0"}));
  EXPECT_EQ(queue.ok(1, 0), Lines({"complete 1", "dispatch 0 to 0"}));
}

// A caller that waits too long reports this reason; its error once named the workers, which only
// repeated the closures.
TEST(ClosureQueueFailures, TheReasonOfARetryIsKnownUntilAClosureEndsWell) {
  QueueScript queue(1);
  queue.put_all({0, 1});
  EXPECT_FALSE(queue.queue().last_again());
  queue.failed(0, 0, ps_unreachable(0));
  ASSERT_TRUE(queue.queue().last_again());
  EXPECT_EQ(queue.queue().last_again()->origin(), "ps:0");
  queue.ok(1, 0);
  EXPECT_FALSE(queue.queue().last_again());
}

// The error said that nobody listened, though the server was back and had lost its variables.
TEST(ClosureQueueFailures, CallersGetTheNewestErrorOfALostServer) {
  QueueOptions options;
  options.failures.ps_failures_max = 1;
  QueueScript queue(1, options);
  queue.put_all({0, 1, 2});
  queue.failed(0, 0, Error(ErrorCode::unavailable, "nobody listens").at("ps:0"));
  queue.join();
  queue.failed(1, 0, Error(ErrorCode::unavailable, "was restarted").at("ps:0"));
  queue.failed(2, 0, Error(ErrorCode::unavailable, "of another server").at("ps:1"));
  queue.join();
  EXPECT_THAT(queue.verdict(), ::testing::StartsWith("raise was restarted; the variables there"));
}

// A failed step explains what follows.
TEST(ClosureQueueFailures, AnErrorOfALostServerReplacesNoOther) {
  QueueOptions options;
  options.failures.ps_failures_max = 1;
  QueueScript queue(1, options);
  queue.put_all({0, 1});
  queue.failed(0, 0, bad_value("of a step"));
  queue.failed(1, 0, ps_unreachable(0));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise of a step");
}

TEST(ClosureQueueFailures, ATimeoutIsIgnoredBelowItsLimitOnly) {
  QueueOptions options = one_slot();
  options.failures.timeouts_max = 2;
  QueueScript queue(1, options);
  queue.put(0);
  EXPECT_EQ(queue.failed(0, 0, timeout()), Lines({"dispatch 0 to 0"}));
  EXPECT_EQ(queue.failed(0, 0, timeout()), Lines({"fail 0 deadline_exceeded"}));
}

TEST(ClosureQueueFailures, WhatTheJobCancelledRunsAgain) {
  QueueScript queue(1, one_slot());
  queue.put(0);
  const Error by_job(ErrorCode::cancelled, "cancelled", ErrorCause::cancelled_by_job);
  EXPECT_EQ(queue.failed(0, 0, by_job), Lines({"dispatch 0 to 0"}));
  EXPECT_EQ(queue.cancelled(0, 0), Lines({"dispatch 0 to 0"}));
}

TEST(ClosureQueueFailures, AWorkerFailureRecoversTheWorkerAndRetriesItsClosures) {
  QueueScript queue(2);
  queue.put_all({0, 1, 2});
  EXPECT_EQ(queue.failed(2, 0, connection_lost("worker:0")),
            Lines({"recover 0", "dispatch 0 to 1", "dispatch 2 to 1"}));
}

// The closures of a worker that is lost during cancel-all have not failed by themselves.
TEST(ClosureQueueFailures, AWorkerFailureWhileCancellingCancels) {
  QueueScript queue(2);
  queue.put_all({0, 1, 2, 3});
  queue.failed(0, 0);
  queue.join();
  EXPECT_EQ(queue.failed(1, 1, connection_lost("worker:1")),
            Lines({"fail 1 cancelled", "fail 3 cancelled", "recover 1"}));
  EXPECT_EQ(queue.ok(2, 0), Lines({"complete 2", "wake"}));
}

TEST(ClosureQueueFailures, AClosureIsNotStartedForEver) {
  QueueScript queue(1, {.max_attempts = 3});
  queue.put(0);
  for (int attempt = 0; attempt < 2; ++attempt) {
    EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
    EXPECT_EQ(queue.ready(0), Lines({"dispatch 0 to 0"}));
  }
  EXPECT_EQ(queue.lost(0), Lines({"fail 0 unavailable", "recover 0"}));
  queue.join();
  EXPECT_NE(queue.raised().message().find("started 3 times"), std::string::npos);
  EXPECT_NE(queue.raised().message().find("connection closed"), std::string::npos);
  EXPECT_EQ(queue.raised().origin(), "worker:0");
}

// ---- worker loss and recovery (5.6)

// 5.6.1
TEST(ClosureQueueLoss, AllClosuresOfALostWorkerGoToTheFrontInIdOrder) {
  QueueScript queue(2);
  queue.put_all({0, 1, 2, 3, 4, 5, 6, 7, 8});
  queue.lost(0);  // had 0 2 4 6
  EXPECT_EQ(queue.queue().queued(), 5);
  EXPECT_EQ(queue.ok(1, 1), Lines({"complete 1", "dispatch 0 to 1"}));
  EXPECT_EQ(queue.ok(3, 1), Lines({"complete 3", "dispatch 2 to 1"}));
  EXPECT_EQ(queue.ok(5, 1), Lines({"complete 5", "dispatch 4 to 1"}));
  EXPECT_EQ(queue.ok(7, 1), Lines({"complete 7", "dispatch 6 to 1"}));
  EXPECT_EQ(queue.ok(0, 1), Lines({"complete 0", "dispatch 8 to 1"}));
}

TEST(ClosureQueueLoss, NothingGoesToALostWorker) {
  QueueScript queue(2, one_slot());
  queue.lost(0);
  EXPECT_EQ(queue.put_all({0, 1}), Lines({"dispatch 0 to 1"}));
}

// 5.6.3
TEST(ClosureQueueLoss, ARecoveredWorkerContinuesWithTheQueue) {
  QueueScript queue(1);
  queue.put_all({0, 1});
  EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(queue.ready(0), Lines({"dispatch 0 to 0", "dispatch 1 to 0"}));
}

TEST(ClosureQueueLoss, OneRecoveryRunsForAWorker) {
  QueueScript queue(2);
  EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(queue.lost(0), Lines());
  EXPECT_EQ(queue.ready(0), Lines());
  EXPECT_EQ(queue.ready(0), Lines());
  EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
}

// 5.6.5, with the failure that each in-flight closure of the lost worker may still report.
TEST(ClosureQueueLoss, LateReportsOfALostWorkerChangeNothing) {
  QueueScript queue(1);
  queue.put_all({0, 1});
  EXPECT_EQ(queue.failed(0, 0, connection_lost("worker:0")), Lines({"recover 0"}));
  EXPECT_EQ(queue.failed(1, 0, connection_lost("worker:0")), Lines());
  EXPECT_EQ(queue.queue().queued(), 2);
}

TEST(ClosureQueueLoss, AfterAnErrorALostWorkersClosuresAreCancelled) {
  QueueScript queue(2);
  queue.put_all({0, 1, 2, 3});
  queue.failed(0, 0);
  EXPECT_EQ(queue.lost(1), Lines({"fail 1 cancelled", "fail 3 cancelled", "recover 1"}));
}

TEST(ClosureQueueLoss, CancelAllDoesNotWaitForALostWorker) {
  QueueScript queue(2);
  queue.put_all({0, 1, 3, 4});
  queue.failed(0, 0);
  EXPECT_EQ(queue.join(), Lines({"cancel 1 on 1", "cancel 3 on 0", "cancel 4 on 1"}));
  queue.ok(3, 0);
  EXPECT_EQ(queue.lost(1), Lines({"fail 1 cancelled", "fail 4 cancelled", "wake", "recover 1"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "raise E");
}

TEST(ClosureQueueLoss, JoinWaitsForWhatALostWorkerLeft) {
  QueueScript queue(1);
  queue.put(0);
  queue.lost(0);
  queue.join();
  EXPECT_EQ(queue.verdict(), "wait");
  queue.ready(0);
  EXPECT_EQ(queue.ok(0, 0), Lines({"complete 0", "wake"}));
  queue.join();
  EXPECT_EQ(queue.verdict(), "proceed");
}

TEST(ClosureQueueLoss, TheWatermarkWaitsForARetriedClosure) {
  QueueScript queue(2);
  queue.put_all({0, 1, 2});
  queue.ok(1, 1);
  queue.lost(0);
  EXPECT_EQ(queue.queue().low_watermark(), 0);
  queue.ok(0, 1);
  EXPECT_EQ(queue.queue().low_watermark(), 2);
  queue.ok(2, 1);
  EXPECT_EQ(queue.queue().low_watermark(), 3);
}

TEST(ClosureQueueLoss, StopEndsEverything) {
  QueueScript queue(1, one_slot());
  queue.put_all({0, 1});
  EXPECT_EQ(queue.stop(), Lines({"cancel 0 on 0", "fail 0 cancelled", "fail 1 cancelled"}));
  EXPECT_EQ(queue.ok(0, 0), Lines());
  EXPECT_EQ(queue.lost(0), Lines({"recover 0"}));
  EXPECT_EQ(queue.ready(0), Lines());
}

}  // namespace
}  // namespace cohort::coordinator::internal
