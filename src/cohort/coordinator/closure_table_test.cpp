// SPDX-License-Identifier: Apache-2.0
// The rows of the closure queue's table (spec/strategy.md 5.3 and its cases COQ-*): at least one
// test each.
#include "cohort/coordinator/closure_table.h"

#include <gtest/gtest.h>

#include "cohort/coordinator/queue/queue_script.h"
#include "cohort/testing/throws_error.h"

namespace cohort::coordinator::internal {
namespace {

using Place = ClosureTable::Place;

class ClosureTableTest : public ::testing::Test {
 protected:
  std::string put(ClosureId closure) { return word_of(table_.put(closure, actions_)); }
  std::string join() { return word_of(table_.join(actions_)); }
  std::string done() { return word_of(table_.done(actions_)); }
  // The next closure for `worker`, or -1.
  int get(WorkerId worker = 0) {
    const auto closure = table_.get(worker, actions_);
    return closure ? static_cast<int>(*closure) : -1;
  }
  void finished(ClosureId closure) { table_.finished(closure, actions_); }
  void put_back(ClosureId closure) { table_.put_back(closure, Place::tail, actions_); }
  void failed(ClosureId closure, const std::string& message = "E") {
    table_.failed(closure, bad_value(message), actions_);
  }
  // The actions since the last call.
  Lines follows() {
    const Lines lines = lines_of(actions_);
    actions_.clear();
    return lines;
  }

  Actions actions_;
  ClosureTable table_{/*capacity=*/4, /*workers=*/3};
};

TEST_F(ClosureTableTest, ClosuresStartInTheOrderTheyWerePut) {
  for (ClosureId closure : {1, 2, 3}) EXPECT_EQ(put(closure), "proceed");
  EXPECT_EQ(table_.queued(), 3);
  EXPECT_EQ(get(), 1);
  EXPECT_EQ(get(2), 2);
  EXPECT_EQ(table_.in_flight(), 2);
  EXPECT_EQ(get(), 3);
  EXPECT_EQ(get(), -1);
}

// COQ-01
TEST_F(ClosureTableTest, AClosurePutBackRunsAgain) {
  put(1);
  EXPECT_EQ(get(), 1);
  EXPECT_EQ(done(), "no");
  put_back(1);
  EXPECT_EQ(table_.in_flight(), 0);
  EXPECT_EQ(get(), 1);
  finished(1);
  EXPECT_EQ(follows(), Lines({"complete 1"}));
  EXPECT_EQ(done(), "proceed");
  EXPECT_EQ(join(), "proceed");
}

// COQ-02
TEST_F(ClosureTableTest, JoinReturnsAgainAndAgainOnceAllThatWasPutBackHasEnded) {
  for (ClosureId closure : {1, 2, 3}) put(closure);
  for (int i = 0; i < 3; ++i) put_back(static_cast<ClosureId>(get(i % 2)));
  EXPECT_EQ(join(), "wait");
  for (int i = 0; i < 3; ++i) finished(static_cast<ClosureId>(get(i % 2)));
  EXPECT_EQ(follows(), Lines({"complete 1", "complete 2", "complete 3", "wake"}));
  for (int i = 0; i < 4; ++i) EXPECT_EQ(join(), "proceed");
}

// COQ-03
TEST_F(ClosureTableTest, JoinRaisesWhatFailsWhileItWaits) {
  put(1);
  get();
  EXPECT_EQ(join(), "wait");
  failed(1);
  EXPECT_EQ(follows(), Lines({"fail 1 invalid_argument", "wake"}));
  EXPECT_EQ(join(), "raise E");
  EXPECT_EQ(done(), "proceed");
}

// COQ-04
TEST_F(ClosureTableTest, PutRaisesTheErrorAndCancelsItsOwnClosureToo) {
  put(1), put(2);
  get();
  failed(1);
  follows();
  EXPECT_EQ(put(3), "raise E");
  EXPECT_EQ(follows(), Lines({"fail 2 cancelled", "fail 3 cancelled"}));
  EXPECT_EQ(done(), "proceed");
  EXPECT_EQ(put(4), "proceed");
  EXPECT_EQ(get(), 4);
}

// COQ-06
TEST_F(ClosureTableTest, DoneRaisesTheErrorOnce) {
  put(1);
  get();
  EXPECT_EQ(done(), "no");
  failed(1);
  EXPECT_EQ(done(), "raise E");
  EXPECT_EQ(done(), "proceed");
}

// COQ-07
TEST_F(ClosureTableTest, TheFirstErrorIsRaisedAndTheSecondIsItsClosuresOwn) {
  put(1), put(2), put(4);
  get(), get();
  failed(1, "Some");
  EXPECT_EQ(join(), "wait");
  EXPECT_EQ(follows(), Lines({"fail 1 invalid_argument", "cancel 2 on 0"}));
  failed(2, "Fake");
  EXPECT_EQ(follows(), Lines({"fail 2 invalid_argument", "fail 4 cancelled", "wake"}));
  EXPECT_EQ(join(), "raise Some");
  EXPECT_EQ(table_.queued() + table_.in_flight(), 0);
  EXPECT_EQ(join(), "proceed");
}

TEST_F(ClosureTableTest, APutDuringCancelAllIsCancelledWithTheRestAndRaises) {
  put(1), put(2);
  get(), get();
  failed(1, "Some");
  EXPECT_EQ(put(3), "wait");
  EXPECT_EQ(put(3), "wait");
  follows();
  finished(2);
  EXPECT_EQ(follows(), Lines({"complete 2", "fail 3 cancelled", "wake"}));
  EXPECT_EQ(put(3), "raise Some");
  EXPECT_EQ(put(4), "proceed");
}

// COQ-08
TEST_F(ClosureTableTest, PutBacksAndEndsInAnyOrderLeaveNothing) {
  ClosureTable table(0, 10);
  for (ClosureId closure = 0; closure < 200; ++closure) table.put(closure, actions_);
  for (int action = 0; action < 400; ++action) {
    const auto closure = table.get(static_cast<WorkerId>(action % 10), actions_);
    ASSERT_TRUE(closure);
    if (table.attempts(*closure) == 1) {
      table.put_back(*closure, Place::tail, actions_);
    } else {
      table.finished(*closure, actions_);
    }
  }
  EXPECT_EQ(word_of(table.done(actions_)), "proceed");
  EXPECT_EQ(table.low_watermark(), 200);
}

// COQ-09
TEST_F(ClosureTableTest, ResourceClosuresGoFirstAndAreInvisibleToDone) {
  table_.put_resource(1, 103);
  table_.put_resource(2, 102);
  put(1);
  EXPECT_EQ(get(2), 102);
  EXPECT_EQ(table_.in_flight(), 0);
  EXPECT_EQ(get(), 1);
  finished(1);
  EXPECT_EQ(done(), "proceed");
  EXPECT_EQ(join(), "proceed");
  EXPECT_EQ(get(1), 103);
}

TEST_F(ClosureTableTest, AResourceClosureIsPreferredToAQueuedOne) {
  put(1);
  table_.put_resource(1, 101);
  EXPECT_EQ(get(1), 101);
  EXPECT_EQ(get(1), 1);
}

TEST_F(ClosureTableTest, ResourceClosuresIgnoreErrorsAndCapacityAndSurviveCancelAll) {
  for (ClosureId closure : {1, 2, 3, 4}) put(closure);
  get();
  failed(1);
  table_.put_resource(0, 100);
  EXPECT_EQ(join(), "raise E");
  EXPECT_EQ(get(), 100);
  EXPECT_EQ(get(), -1);
}

TEST_F(ClosureTableTest, PutWaitsWhileTheQueueIsFull) {
  for (ClosureId closure : {1, 2, 3, 4}) EXPECT_EQ(put(closure), "proceed");
  EXPECT_EQ(put(5), "wait");
  EXPECT_EQ(table_.queued(), 4);
  get();
  EXPECT_EQ(follows(), Lines({"wake"}));
  EXPECT_EQ(put(5), "proceed");
  EXPECT_EQ(put(6), "wait");
}

TEST_F(ClosureTableTest, PutOnAFullQueueStillRaises) {
  for (ClosureId closure : {1, 2, 3, 4}) put(closure);
  get();
  put(5);
  EXPECT_EQ(put(6), "wait");
  failed(1);
  EXPECT_EQ(follows(), Lines({"fail 1 invalid_argument", "wake"}));
  EXPECT_EQ(put(6), "raise E");
}

TEST_F(ClosureTableTest, WithoutACapacityPutNeverWaits) {
  ClosureTable table(0, 1);
  for (ClosureId closure = 0; closure < 300000; ++closure) {
    ASSERT_EQ(table.put(closure, actions_).kind, Verdict::Kind::proceed);
  }
  EXPECT_EQ(table.queued(), 300000);
}

// With a full queue of the usual size, one wake-up is for many free slots.
TEST_F(ClosureTableTest, AWaitingPutIsWokenWhenThereIsRoomForSeveral) {
  ClosureTable table(64, 1);
  for (ClosureId closure = 0; closure < 64; ++closure) table.put(closure, actions_);
  EXPECT_EQ(word_of(table.put(64, actions_)), "wait");
  for (int i = 0; i < 4; ++i) table.get(0, actions_);
  EXPECT_EQ(follows(), Lines());
  table.get(0, actions_);
  EXPECT_EQ(follows(), Lines({"wake"}));
}

TEST_F(ClosureTableTest, PutBackGoesToTheTail) {
  put(1), put(2);
  get();
  put_back(1);
  EXPECT_EQ(get(), 2);
  EXPECT_EQ(get(), 1);
}

TEST_F(ClosureTableTest, PutBackToTheFrontIsInIdOrder) {
  for (ClosureId closure : {1, 2, 3, 4}) put(closure);
  get(), get(), get();
  for (ClosureId closure : {2, 3, 1}) table_.put_back(closure, Place::front, actions_);
  for (int closure : {1, 2, 3, 4}) EXPECT_EQ(get(), closure);
}

TEST_F(ClosureTableTest, PutBackAfterAnErrorCancels) {
  put(1), put(2);
  get(), get();
  failed(1);
  follows();
  put_back(2);
  EXPECT_EQ(follows(), Lines({"fail 2 cancelled"}));
  EXPECT_EQ(table_.in_flight(), 0);
  EXPECT_EQ(join(), "raise E");
}

TEST_F(ClosureTableTest, WhatIsNotInFlightCannotEnd) {
  put(1), put(2);
  get();
  finished(1);
  const auto expect_refused = [](auto&& call) {
    try {
      call();
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(error.message().find("in flight"), std::string::npos);
    }
  };
  for (ClosureId closure : {1, 2, 9}) {
    expect_refused([&] { finished(closure); });
    expect_refused([&] { put_back(closure); });
    expect_refused([&] { failed(closure); });
  }
}

TEST_F(ClosureTableTest, TheCancelledErrorSaysWhyAndWhatToDo) {
  put(1), put(2);
  get();
  failed(1, "loss is not a number");
  follows();
  join();
  ASSERT_EQ(actions_.size(), 1);
  const Error& error = *actions_.front().error;
  EXPECT_EQ(error.cause(), ErrorCause::cancelled_by_job);
  EXPECT_NE(error.message().find("loss is not a number"), std::string::npos);
  EXPECT_NE(error.message().find("schedule it again"), std::string::npos);
}

TEST_F(ClosureTableTest, WorkersDrainTheQueueUntilACallerHasSeenTheError) {
  put(1), put(2);
  get();
  failed(1);
  EXPECT_EQ(get(), 2);
  finished(2);
  EXPECT_EQ(join(), "raise E");
}

TEST_F(ClosureTableTest, OneOfTwoWaitingCallersRaisesAndTheOtherProceeds) {
  put(1), put(2);
  get(), get();
  failed(1);
  EXPECT_EQ(put(3), "wait");
  EXPECT_EQ(join(), "wait");
  finished(2);
  EXPECT_EQ(join(), "raise E");
  EXPECT_EQ(put(3), "proceed");
  EXPECT_EQ(table_.queued(), 0);
}

TEST_F(ClosureTableTest, APutThatArrivesWhileAnotherCallerCancelsWaitsForTheTimeAfter) {
  put(1), put(2);
  get(), get();
  failed(1);
  EXPECT_EQ(join(), "wait");
  EXPECT_EQ(put(3), "wait");
  follows();
  finished(2);
  EXPECT_EQ(follows(), Lines({"complete 2", "wake"}));
  EXPECT_EQ(join(), "raise E");
  EXPECT_EQ(put(3), "proceed");
  EXPECT_EQ(table_.queued(), 1);
}

TEST_F(ClosureTableTest, IdsMustGrow) {
  put(5);
  for (const ClosureId closure : {ClosureId{5}, ClosureId{4}}) {
    EXPECT_THAT([&] { put(closure); }, testing::throws_error(ErrorCode::invalid_argument,
                                                             "a closure id of at least 6, got " +
                                                                 std::to_string(closure)));
  }
  EXPECT_THAT([&] { put(ClosureId{1} << 60); },
              testing::throws_error(ErrorCode::invalid_argument, "a closure id near 6"));
  EXPECT_EQ(put(6), "proceed");
}

TEST_F(ClosureTableTest, TheLowWatermarkIsTheOldestClosureThatHasNotEnded) {
  EXPECT_EQ(table_.low_watermark(), 0);
  put(10), put(11), put(15);
  EXPECT_EQ(table_.low_watermark(), 10);
  get(), get();
  finished(11);
  EXPECT_EQ(table_.low_watermark(), 10);
  put_back(10);
  EXPECT_EQ(table_.low_watermark(), 10);
  get(), get();
  finished(10);
  EXPECT_EQ(table_.low_watermark(), 15);
  finished(15);
  EXPECT_EQ(table_.low_watermark(), 16);
}

TEST_F(ClosureTableTest, AHeldClosureIsInFlightButCancelAllDoesNotWaitForIt) {
  put(1), put(2);
  get(), get();
  table_.hold(1);
  EXPECT_EQ(table_.in_flight(), 2);
  EXPECT_EQ(done(), "no");
  failed(2);
  follows();
  EXPECT_EQ(join(), "raise E");
  EXPECT_EQ(follows(), Lines({"fail 1 cancelled"}));
}

TEST_F(ClosureTableTest, StopEndsEverythingAndGetReturnsNothing) {
  put(1), put(2), put(3);
  table_.put_resource(0, 100);
  get(1), get(1);
  table_.hold(2);
  EXPECT_EQ(join(), "wait");
  table_.stop(actions_);
  EXPECT_EQ(follows(), Lines({"cancel 1 on 1", "fail 1 cancelled", "fail 2 cancelled",
                              "fail 3 cancelled", "wake"}));
  EXPECT_EQ(get(), -1);
  EXPECT_EQ(join(), "proceed");
  EXPECT_NE(put(4).find("stopped"), std::string::npos);
}

TEST_F(ClosureTableTest, NobodyIsWokenWhoDoesNotWait) {
  put(1);
  get();
  finished(1);
  EXPECT_EQ(follows(), Lines({"complete 1"}));
}

}  // namespace
}  // namespace cohort::coordinator::internal
