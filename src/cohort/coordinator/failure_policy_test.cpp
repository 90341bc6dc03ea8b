// SPDX-License-Identifier: Apache-2.0
// The rows of the classification of failures (spec/strategy.md 5.5).
#include "cohort/coordinator/failure_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cohort::coordinator {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;

Error error_of(ErrorCode code, const std::string& origin, ErrorCause cause = ErrorCause::none) {
  return Error(code, "text that names /job:worker/task:1 and /job:ps/task:0", cause).at(origin);
}

class FailurePolicyTest : public ::testing::Test {
 protected:
  FailureClass classify(const Error& error, bool is_cancelling = false) {
    return policy_.classify(error, is_cancelling, now_);
  }
  void use(FailureOptions options, std::size_t workers) { policy_ = {options, workers}; }

  TimePoint now_;
  FailurePolicy policy_{{}, 1};
  Error ps0_ = error_of(ErrorCode::unavailable, "ps:0");
  Error ps1_ = error_of(ErrorCode::aborted, "ps:1");
  Error timeout_ = error_of(ErrorCode::deadline_exceeded, "worker:1");
};

// Row 1
TEST_F(FailurePolicyTest, TwoReportsOfAPsAreIgnoredAndTheThirdIsFatal) {
  EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
  EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
  EXPECT_EQ(classify(ps0_), FailureClass::application);
  EXPECT_EQ(classify(ps0_), FailureClass::application);
}

TEST_F(FailurePolicyTest, EachPsIsCountedByItself) {
  for (int report = 0; report < 2; ++report) {
    EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
    EXPECT_EQ(classify(ps1_), FailureClass::transient_ps);
  }
}

// tf ignores such reports without a limit.
TEST_F(FailurePolicyTest, APsWithoutAnIndexIsCountedToo) {
  const Error unnamed = error_of(ErrorCode::unavailable, "ps");
  EXPECT_EQ(classify(unnamed), FailureClass::transient_ps);
  EXPECT_EQ(classify(unnamed), FailureClass::transient_ps);
  EXPECT_EQ(classify(unnamed), FailureClass::application);
}

TEST_F(FailurePolicyTest, APsLimitOfZeroOrLessIgnoresNothing) {
  for (int limit : {0, -1, 1}) {
    use({.ps_failures_max = limit}, 1);
    EXPECT_EQ(classify(ps0_), FailureClass::application);
  }
}

TEST_F(FailurePolicyTest, ReportsOlderThanTheWindowAreForgotten) {
  classify(ps0_);
  classify(ps0_);
  now_ += minutes(10);
  EXPECT_EQ(classify(ps0_), FailureClass::application);
  now_ += minutes(10) + seconds(1);
  EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
}

TEST_F(FailurePolicyTest, ClosuresThatFailTogetherCanCountOnce) {
  use({.same_event = seconds(1)}, 1);
  for (int closure = 0; closure < 8; ++closure)
    EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
  now_ += seconds(1);
  for (int closure = 0; closure < 8; ++closure)
    EXPECT_EQ(classify(ps0_), FailureClass::transient_ps);
  now_ += seconds(1);
  EXPECT_EQ(classify(ps0_), FailureClass::application);
}

// Row 2
TEST_F(FailurePolicyTest, TimeoutsAreIgnoredBelowATenthOfTheWorkers) {
  use({}, 30);
  EXPECT_EQ(classify(timeout_), FailureClass::transient_timeout);
  EXPECT_EQ(classify(error_of(ErrorCode::deadline_exceeded, "ps:0")),
            FailureClass::transient_timeout);
  EXPECT_EQ(classify(timeout_), FailureClass::application);
}

TEST_F(FailurePolicyTest, WithFewWorkersNoTimeoutIsIgnored) {
  for (std::size_t workers : {1, 9, 10, 19}) {
    use({}, workers);
    EXPECT_EQ(classify(timeout_), FailureClass::application) << workers;
  }
}

TEST_F(FailurePolicyTest, ATimeoutLimitOfZeroIgnoresNothing) {
  use({.timeouts_max = 0}, 100);
  EXPECT_EQ(classify(timeout_), FailureClass::application);
}

TEST_F(FailurePolicyTest, OldTimeoutsAreForgotten) {
  use({.timeouts_max = 2}, 1);
  EXPECT_EQ(classify(timeout_), FailureClass::transient_timeout);
  now_ += minutes(11);
  EXPECT_EQ(classify(timeout_), FailureClass::transient_timeout);
  EXPECT_EQ(classify(timeout_), FailureClass::application);
}

// Row 3
TEST_F(FailurePolicyTest, WhatTheJobCancelledIsPutBackWithoutALimit) {
  const Error by_job = error_of(ErrorCode::cancelled, "worker:1", ErrorCause::cancelled_by_job);
  for (int report = 0; report < 100; ++report) {
    EXPECT_EQ(classify(by_job, report % 2 == 0), FailureClass::cancelled_by_job);
  }
}

// Row 4
TEST_F(FailurePolicyTest, WhatIsNoWorkerFailureIsTheApplications) {
  for (const char* origin : {"worker:1", "chief:0", ""}) {
    EXPECT_EQ(classify(error_of(ErrorCode::invalid_argument, origin)), FailureClass::application);
  }
  EXPECT_EQ(classify(error_of(ErrorCode::unavailable, "")), FailureClass::application);
  EXPECT_EQ(classify(error_of(ErrorCode::unavailable, "chief:0")), FailureClass::application);
  EXPECT_EQ(classify(error_of(ErrorCode::unavailable, "workers:1")), FailureClass::application);
}

TEST_F(FailurePolicyTest, WhileCancellingAWorkerFailureIsTheApplications) {
  EXPECT_EQ(classify(error_of(ErrorCode::unavailable, "worker:1"), true),
            FailureClass::application);
}

// Row 5
TEST_F(FailurePolicyTest, AWorkerFailureIsRetriedWithRecovery) {
  EXPECT_EQ(classify(error_of(ErrorCode::unavailable, "worker:1")), FailureClass::worker_failure);
}

// User code may throw any code.
TEST_F(FailurePolicyTest, AnApplicationsOwnErrorIsNeverALostTask) {
  for (ErrorCode code : {ErrorCode::unavailable, ErrorCode::aborted, ErrorCode::cancelled}) {
    for (const char* origin : {"worker:1", "ps:0"}) {
      EXPECT_EQ(classify(error_of(code, origin, ErrorCause::application)),
                FailureClass::application);
    }
  }
}

struct LostTaskCase {
  const char* origin;
  ErrorCode code;
  ErrorCause cause;
  bool is_ps_failure;
  bool is_worker_failure;
};

void PrintTo(const LostTaskCase& c, std::ostream* out) {
  *out << name_of(c.code) << " " << name_of(c.cause) << " from " << c.origin;
}

class LostTaskTest : public ::testing::TestWithParam<LostTaskCase> {};

TEST_P(LostTaskTest, FollowsFromCodeOriginAndCause) {
  const LostTaskCase& c = GetParam();
  const Error error = error_of(c.code, c.origin, c.cause);
  EXPECT_EQ(failed_ps(error).has_value(), c.is_ps_failure) << error.what();
  EXPECT_EQ(is_worker_failure(error), c.is_worker_failure) << error.what();
}

using Code = ErrorCode;
using Cause = ErrorCause;
INSTANTIATE_TEST_SUITE_P(
    Rows, LostTaskTest,
    ::testing::Values(
        LostTaskCase{"ps:0", Code::unavailable, Cause::none, true, false},
        LostTaskCase{"ps:0", Code::unavailable, Cause::peer_lost, true, false},
        LostTaskCase{"ps:0", Code::aborted, Cause::none, true, false},
        LostTaskCase{"ps:0", Code::invalid_argument, Cause::handle_lost, true, false},
        LostTaskCase{"ps:0", Code::invalid_argument, Cause::none, false, false},
        // A restarted server, after and before it has met the coordinator again.
        LostTaskCase{"ps:0", Code::not_found, Cause::handle_lost, true, false},
        LostTaskCase{"ps:0", Code::failed_precondition, Cause::handle_lost, true, false},
        LostTaskCase{"ps:0", Code::not_found, Cause::none, false, false},
        LostTaskCase{"ps:0", Code::failed_precondition, Cause::none, false, false},
        LostTaskCase{"ps:0", Code::cancelled, Cause::none, false, false},
        LostTaskCase{"worker:1", Code::unavailable, Cause::none, false, true},
        LostTaskCase{"worker:1", Code::aborted, Cause::none, false, true},
        LostTaskCase{"worker:1", Code::cancelled, Cause::none, false, true},
        LostTaskCase{"worker:1", Code::deadline_exceeded, Cause::none, false, false},
        LostTaskCase{"worker:1", Code::invalid_argument, Cause::none, false, false},
        LostTaskCase{"worker:1", Code::invalid_argument, Cause::wrong_type, false, false},
        LostTaskCase{"worker:1", Code::invalid_argument, Cause::handle_lost, false, true},
        LostTaskCase{"worker:1", Code::invalid_argument, Cause::peer_lost, false, true},
        LostTaskCase{"worker:1", Code::invalid_argument, Cause::input_binding, false, true},
        LostTaskCase{"worker:1", Code::not_found, Cause::none, false, false},
        LostTaskCase{"worker:1", Code::not_found, Cause::function_missing, false, true},
        LostTaskCase{"worker:1", Code::not_found, Cause::handle_lost, false, true},
        LostTaskCase{"worker:1", Code::unknown, Cause::none, false, false},
        LostTaskCase{"worker:1", Code::unavailable, Cause::closure_input, false, true},
        LostTaskCase{"ps:0", Code::unavailable, Cause::closure_aborted, true, false},
        LostTaskCase{"", Code::unavailable, Cause::peer_lost, false, false}));

TEST(FailedPs, NamesTheServer) {
  EXPECT_EQ(failed_ps(error_of(ErrorCode::unavailable, "ps:12")), 12);
  EXPECT_EQ(failed_ps(error_of(ErrorCode::unavailable, "ps")), -1);
  EXPECT_EQ(failed_ps(error_of(ErrorCode::unavailable, "ps:x")), -1);
}

TEST(FailedPs, BecomesAnErrorThatSaysWhatToDo) {
  const Error aborted = error_of(ErrorCode::aborted, "ps:1").during("pulling");
  const Error error = as_ps_unavailable(aborted, 3);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.origin(), "ps:1");
  EXPECT_THAT(error.context(), ::testing::ElementsAre("pulling", "running a closure on worker:3"));
  EXPECT_EQ(error.message(), aborted.message() +
                                 "; the variables there may be lost: see that ps:1 runs, and start "
                                 "the program again");
}

}  // namespace
}  // namespace cohort::coordinator
