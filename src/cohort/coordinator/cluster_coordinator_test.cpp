// SPDX-License-Identifier: Apache-2.0
// The coordinator with servers that a test controls.
#include "cohort/coordinator/cluster_coordinator.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/rand_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>

#include "cohort/coordinator/runtime/runtime.h"
#include "cohort/core/log.h"
#include "cohort/data/iterator.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using coordinator::Runtime;
using testing::FakeTask;
using testing::patience;
using testing::Promised;
using testing::throws_error;

using End = rpc::ClosureEnd;

class CoordinatorTest : public testing::CoordinatorFixture {
 protected:
  std::shared_ptr<Runtime> start(const CoordinatorOptions& options) {
    auto runtime = std::make_shared<Runtime>(strategy(), options, CoordinatorNumbers());
    runtime->start();
    return runtime;
  }
};

// Regression: ids started at 1 again, so servers took new closures for earlier ones.
TEST_F(CoordinatorTest, TheNextCoordinatorGoesOnCounting) {
  for (int i = 0; i < 3; ++i) {
    ClusterCoordinator coordinator(strategy());
    coordinator.schedule(nothing);
    EXPECT_TRUE(coordinator.join(std::chrono::seconds(60))) << "coordinator " << i;
  }
  const auto closures = worker.closures();
  ASSERT_EQ(closures.size(), 3U);
  for (std::size_t i = 1; i < closures.size(); ++i) {
    EXPECT_GT(closures[i].closure_id, closures[i - 1].closure_id);
    EXPECT_GT(closures[i].function_id, closures[i - 1].function_id);
  }
}

TEST_F(CoordinatorTest, TheNextCoordinatorMayComeWhileTheLastOneEnds) {
  auto first = std::make_unique<ClusterCoordinator>(strategy());
  for (int i = 0; i < 20; ++i) {
    std::thread end([last = std::move(first)]() mutable { last.reset(); });
    first = std::make_unique<ClusterCoordinator>(strategy());
    end.join();
    first->schedule(nothing).fetch(patience());
  }
}

TEST_F(CoordinatorTest, IteratorsOfACoordinatorThatHasEndedAreRefusedAndReleased) {
  std::optional<ClusterCoordinator> coordinator(strategy());
  const auto old = coordinator->create_per_worker_dataset(Dataset::range(3)).iterator();
  coordinator.reset();
  coordinator.emplace(strategy());
  EXPECT_THAT(
      [&] { coordinator->schedule(nothing, old); },
      throws_error(ErrorCode::invalid_argument, "expected an iterator of this coordinator"));
  coordinator->create_per_worker_dataset(Dataset::range(3)).iterator();
  EXPECT_EQ(worker.released().size(), 1U);
}

TEST_F(CoordinatorTest, AnotherHandleTakesTheSameOptionsOrNone) {
  const CoordinatorOptions options{.queue_capacity = 7};
  ClusterCoordinator coordinator(strategy(), options);
  ClusterCoordinator same(strategy(), options);
  ClusterCoordinator none(strategy());
  EXPECT_THAT([&] { ClusterCoordinator(strategy(), {.queue_capacity = 8}); },
              throws_error(ErrorCode::failed_precondition, "destroy that one first"));
}

// Regression: the function stayed in the setup of workers that return, so that none could return.
TEST_F(CoordinatorTest, AFunctionThatIsRefusedDoesNoHarmToOthers) {
  worker.on_register = [](const rpc::FunctionBody& body) {
    COHORT_CHECK(body.name != "bad", ErrorCode::not_found, "never heard of it");
  };
  ClusterCoordinator coordinator(strategy());
  const Function bad = Function::registered("bad");
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { coordinator.schedule(bad); },
                throws_error(ErrorCode::not_found, "never heard of it"));
  }
  coordinator.schedule(nothing).fetch(patience());
  worker.close_channels();
  coordinator.schedule(nothing).fetch(patience());
}

// Regression: the second caller used the function before the workers had it, and lost the worker.
TEST_F(CoordinatorTest, CallersWhoMeetOneNewFunctionAllWaitUntilTheWorkersHaveIt) {
  constexpr int kFunctions = 20;
  ClusterCoordinator coordinator(strategy());
  for (int i = 0; i < kFunctions; ++i) {
    const Function fresh([] { return Nest(); });
    std::vector<std::thread> callers;
    for (int caller = 0; caller < 4; ++caller)
      callers.emplace_back([&] { coordinator.schedule(fresh); });
    for (std::thread& caller : callers) caller.join();
  }
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(worker.functions().size(), kFunctions) << "each once";
  EXPECT_EQ(coordinator.statistics().traces, kFunctions);
  EXPECT_EQ(coordinator.statistics().retries, 0U);
}

// Regression: a worker's recovery needed the lock of the trace.
TEST_F(CoordinatorTest, ALostWorkerComesBackWhileAFunctionIsTraced) {
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing).fetch(patience());
  bool is_first = true;
  const Function slow([&] {
    if (!std::exchange(is_first, false)) return Nest();
    worker.close_channels();
    EXPECT_TRUE(await([&] { return worker.functions().count(0) == 2; })) << "not set up again";
    return Nest();
  });
  coordinator.schedule(slow).fetch(patience());
}

TEST_F(CoordinatorTest, AScheduleThatGivesUpLeavesNothing) {
  worker.answers = false;
  const auto runtime = start({.queue_capacity = 1,
                              .in_flight_per_worker = 1,
                              .progress_timeout = std::chrono::milliseconds(50)});
  runtime->schedule(nothing, {});
  runtime->schedule(nothing, {});
  EXPECT_THAT([&] { runtime->schedule(nothing, {}); },
              throws_error(ErrorCode::deadline_exceeded, "CoordinatorOptions::progress_timeout"));
  EXPECT_EQ(runtime->pending_count(), 2U);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1}});
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(runtime->join(std::chrono::seconds(60)));
  EXPECT_EQ(runtime->pending_count(), 0U);
}

TEST_F(CoordinatorTest, ClosuresThatFailOrAreCancelledLeaveNothing) {
  worker.answers = false;
  const auto runtime = start({.in_flight_per_worker = 2});
  std::vector<RemoteValue> results;
  for (int i = 0; i < 6; ++i) results.push_back(runtime->schedule(nothing, {}));
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1,
               .status = End::Status::failed,
               .error = Error(ErrorCode::out_of_range, "the data has ended")}});
  ASSERT_TRUE(await([&] { return results[0].is_ready(); }));
  EXPECT_THAT([&] { runtime->join(std::nullopt); },
              throws_error(ErrorCode::out_of_range, "the data has ended"));
  EXPECT_EQ(runtime->pending_count(), 0U);
  for (const RemoteValue& result : results) EXPECT_TRUE(result.is_ready());
}

// Regression: it waited until the other caller's turn was over.
TEST_F(CoordinatorTest, AJoinWithADeadlineGivesUpBehindAnotherCaller) {
  worker.answers = false;
  const auto runtime = start({.queue_capacity = 1,
                              .in_flight_per_worker = 1,
                              .progress_timeout = std::chrono::seconds(20)});
  runtime->schedule(nothing, {});
  runtime->schedule(nothing, {});
  Promised<bool> is_over;
  std::thread other([&] {  // waits for room in the queue
    EXPECT_NO_THROW(runtime->schedule(nothing, {}));
    is_over.set(true);
  });
  EXPECT_TRUE(await([&] { return runtime->pending_count() == 3; }));
  EXPECT_FALSE(runtime->join(std::chrono::milliseconds(1)));
  EXPECT_FALSE(is_over.is_set());
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1}});
  other.join();
}

// Regression: it waited for the deadline of control calls.
TEST_F(CoordinatorTest, TheEndDoesNotWaitForAWorkerThatIsSilentWhileItIsSetUp) {
  worker.on_register = [&](const rpc::FunctionBody&) {
    if (++asked != 2) return;
    is_asked.set(true);
    may_answer.wait();
  };
  std::optional<ClusterCoordinator> coordinator(strategy());
  coordinator->schedule(nothing).fetch(patience());
  worker.close_channels();
  is_asked.wait();
  coordinator.reset();
  may_answer.set(true);  // wait() above fails if this is too late
}

TEST_F(CoordinatorTest, AWorkerThatDoesNotAnswerIsLostThoughItsConnectionStands) {
  worker.on_health = [&] {
    if (asked++ < 3) may_answer.wait();
  };
  ClusterCoordinator coordinator(strategy(), {.heartbeat = std::chrono::milliseconds(20)});
  EXPECT_TRUE(worker.await_hellos(2)) << "nobody tried to reach it again";
  may_answer.set(true);
}

// Regression: it retried for ever, and replaced its successor's functions when it succeeded.
TEST_F(CoordinatorTest, ACoordinatorWhosePlaceIsTakenEndsForGood) {
  std::atomic<bool> is_replaced = false;
  worker.answers = false;
  worker.on_handshake = [&](const rpc::HandshakeRequest& request) {
    EXPECT_EQ(request.is_returning, is_replaced.load());
    if (is_replaced) throw rpc::replaced_error("worker:0");
  };
  ClusterCoordinator coordinator(strategy());
  const RemoteValue result = coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  is_replaced = true;
  worker.close_channels();
  const auto is_refused = throws_error(ErrorCode::aborted, "another coordinator took its place");
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); }, is_refused);
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); }, is_refused) << "thrown once";
  EXPECT_THAT([&] { coordinator.schedule(nothing); }, is_refused);
  EXPECT_THAT([&] { coordinator.done(); }, is_refused);
  EXPECT_THAT([&] { result.fetch(patience()); }, is_refused);
}

TEST_F(CoordinatorTest, AWorkersWordOfAnotherCoordinatorEndsThisOne) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  for (int i = 0; i < 2; ++i) coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(2));
  worker.end(
      {{.closure_id = 1},
       {.closure_id = 2, .status = End::Status::failed, .error = rpc::replaced_error("ps:0")}});
  const auto is_refused = throws_error(ErrorCode::aborted, "another coordinator took its place");
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); }, is_refused);
  EXPECT_THAT([&] { coordinator.schedule(nothing); }, is_refused);
}

TEST_F(CoordinatorTest, ARefusedFunctionEndsACoordinatorWhosePlaceIsTaken) {
  worker.on_register = [](const rpc::FunctionBody&) { throw rpc::replaced_error("worker:0"); };
  ClusterCoordinator coordinator(strategy());
  const auto is_refused = throws_error(ErrorCode::aborted, "another coordinator took its place");
  EXPECT_THAT([&] { coordinator.schedule(nothing); }, is_refused);
  worker.on_register = [](const rpc::FunctionBody&) {};
  EXPECT_THAT([&] { coordinator.schedule(nothing); }, is_refused);
}

// Regression: ends after the loss in one report were counted, and again after the retry.
TEST_F(CoordinatorTest, AClosureCountsOnceHoweverOftenItRuns) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 2});
  for (int i = 0; i < 2; ++i) coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1,
               .status = End::Status::failed,
               .error = Error(ErrorCode::unavailable, "gone").at("worker:0"),
               .pulled_bytes = 1},
              {.closure_id = 2, .pulled_bytes = 2, .pushed_bytes = 3}});
  ASSERT_TRUE(worker.await_closures(4));
  worker.end({{.closure_id = 2, .pulled_bytes = 4}, {.closure_id = 1, .pushed_bytes = 5}});
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  const CoordinatorStatistics statistics = coordinator.statistics();
  EXPECT_EQ(statistics.closures, std::vector<std::uint64_t>{2});
  EXPECT_EQ(statistics.retries, 2U);
  EXPECT_EQ(statistics.pulled_bytes, 7U);
  EXPECT_EQ(statistics.pushed_bytes, 8U);
}

TEST_F(CoordinatorTest, AnEndOfAClosureThatWasNeverSentThereEndsTheConnection) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 1});
  coordinator.schedule(nothing);
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 2}});  // closure 2 waits for the first one
  ASSERT_TRUE(worker.await_closures(2)) << "the connection is still open";
  worker.end({{.closure_id = 1}});
  ASSERT_TRUE(worker.await_closures(3));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  const CoordinatorStatistics statistics = coordinator.statistics();
  EXPECT_EQ(statistics.protocol_errors, 1U);
  EXPECT_EQ(statistics.retries, 1U);
  EXPECT_EQ(statistics.closures, std::vector<std::uint64_t>{2});
}

TEST_F(CoordinatorTest, AnEndThatComesOnceMoreIsDroppedAndTheConnectionStays) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1}, {.closure_id = 1}});
  worker.end({{.closure_id = 1}});
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  const CoordinatorStatistics statistics = coordinator.statistics();
  EXPECT_EQ(statistics.duplicate_reports_dropped, 2U);
  EXPECT_EQ(statistics.protocol_errors, 0U);
  EXPECT_EQ(statistics.retries, 0U);
}

// Regression: training continued, and no error told that an update was missing.
TEST_F(CoordinatorTest, AnUpdateThatWasDroppedAtTheFirstAttemptIsAnError) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1, .pushes_dropped = 1}});
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::data_loss, "updates are missing"));
  EXPECT_EQ(coordinator.statistics().protocol_errors, 1U);
  ASSERT_TRUE(worker.await_hellos(2)) << "the worker does not come back";
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 2}});
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
}

// The closure must not run again: then the dropped update would count as that of a retry.
TEST_F(CoordinatorTest, AnErrorDoesNotHideADroppedUpdate) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1,
               .status = End::Status::failed,
               .error = Error(ErrorCode::unavailable, "just now").at("ps:0"),
               .pushes_dropped = 1}});
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::data_loss, "updates are missing"));
  EXPECT_EQ(coordinator.statistics().protocol_errors, 1U);
}

TEST_F(CoordinatorTest, AnUpdateThatWasDroppedAtALaterAttemptIsCounted) {
  worker.answers = false;
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.close_channels();
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1, .pushes_dropped = 2}});
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(coordinator.statistics().pushes_dropped, 2U);
  EXPECT_EQ(coordinator.statistics().protocol_errors, 0U);
}

// Regression: the channel's thread failed with the error, and the closure never ended.
TEST_F(CoordinatorTest, OutputsThatDoNotFillTheResultAreAnErrorOfTheResult) {
  ClusterCoordinator coordinator(strategy());
  const Function two([] { return Nest::tuple({at::ones({}), at::ones({})}); }, {.name = "two"});
  const RemoteValue result = coordinator.schedule(two);  // the worker returns nothing
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  ASSERT_TRUE(result.is_ready());
  EXPECT_THAT([&] { result.fetch(); },
              throws_error(ErrorCode::data_loss,
                           "expected 2 tensors as the result of 'two', got 0 from its worker"));
}

// Regression: sending failed, and no closure of that message ever ended.
TEST_F(CoordinatorTest, ArgumentsThatCannotTravelAreRefused) {
  ClusterCoordinator coordinator(strategy());
  const Function take([](at::Tensor x, at::Tensor) { return x; }, {.name = "take"});
  const at::Tensor fine = at::ones({2});
  for (const Function& fn : {take, nothing}) {
    EXPECT_THAT(
        [&] { coordinator.schedule(fn, fine, at::Tensor()); },
        throws_error(ErrorCode::invalid_argument,
                     "got an undefined tensor (argument 1 of '" + fn.name() + "'); make it dense"));
    EXPECT_THAT(
        [&] {
          coordinator.schedule(fn, Nest::list({fine, fine.to_sparse()}), fine);
        },
        throws_error(ErrorCode::invalid_argument, "of a sparse layout (argument 0 of"));
  }
  coordinator.schedule(nothing, fine).fetch(patience());
}

// Regression: the number was a tensor on the worker, where x + number had another dtype.
TEST_F(CoordinatorTest, AWrappedNumberIsNoArgument) {
  ClusterCoordinator coordinator(strategy());
  const Function add([](at::Tensor x, at::Tensor y) { return x.add(y); }, {.name = "add"});
  const at::Tensor number = at::ones({}, at::kDouble);
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  EXPECT_THAT([&] { coordinator.schedule(add, at::ones({}), number); },
              throws_error(ErrorCode::invalid_argument, "wrapped into one (argument 1 of 'add')"));
  EXPECT_NO_THROW(coordinator.schedule(add, at::ones({}), number.clone()));
}

TEST_F(CoordinatorTest, ATracedResultThatCannotTravelIsRefused) {
  ClusterCoordinator coordinator(strategy());
  const Function undefined(
      [] {
        return Nest::tuple({at::ones({}), at::Tensor()});
      },
      {.name = "undefined"});
  EXPECT_THAT([&] { coordinator.schedule(undefined); },
              throws_error(ErrorCode::invalid_argument,
                           "the result of 'undefined', got an undefined tensor (tensor 1)"));
  const Function sparse([](at::Tensor x) { return x.to_sparse(); });
  EXPECT_THAT([&] { coordinator.schedule(sparse, at::ones({2})); },
              throws_error(ErrorCode::invalid_argument, "of a sparse layout (tensor 0)"));
}

// Regression: the call waited for the trace inside which it was made.
TEST_F(CoordinatorTest, CallsInsideAScheduledFunctionAreRefused) {
  ClusterCoordinator coordinator(strategy());
  const Dataset data = Dataset::range(3);
  const PerWorkerDataset per_worker = coordinator.create_per_worker_dataset(data);
  const RemoteValue value = coordinator.schedule(nothing);
  const std::vector<std::pair<std::string, std::function<void()>>> calls = {
      {"coordinator.schedule", [&] { coordinator.schedule(nothing); }},
      {"coordinator.join", [&] { coordinator.join(); }},
      {"coordinator.join", [&] { coordinator.join(std::chrono::seconds(1)); }},
      {"coordinator.done", [&] { coordinator.done(); }},
      {"coordinator.fetch", [&] { coordinator.fetch(value); }},
      {"coordinator.fetch", [&] { value.fetch(); }},
      {"coordinator.create_iterator", [&] { per_worker.iterator(); }},
      {"coordinator.create_per_worker_dataset",
       [&] { coordinator.create_per_worker_dataset(data); }},
      {"coordinator.create_per_worker_dataset",
       [&] { coordinator.create_per_worker_dataset([&](const InputContext&) { return data; }); }},
      {"strategy.variable", [&] { strategy().variable("v", at::ones({})); }}};
  for (const auto& [name, call] : calls) {
    const Function step([&, inner = call] { inner(); });
    EXPECT_THAT([&] { coordinator.schedule(step); },
                throws_error(ErrorCode::failed_precondition, "[" + name + "]"));
  }
  coordinator.join();
}

TEST_F(CoordinatorTest, DeadlinesNameTheCallAndTheWorkers) {
  worker.answers = false;
  const auto runtime =
      start({.in_flight_per_worker = 1, .progress_timeout = std::chrono::milliseconds(50)});
  const RemoteValue result = runtime->schedule(nothing, {});
  const std::string still_waiting_for =
      "still waiting for worker:0, which runs its closure; 1 closures in flight, 0 queued";
  EXPECT_THAT([&] { result.fetch(Deadline::after(std::chrono::milliseconds(1))); },
              throws_error(ErrorCode::deadline_exceeded, still_waiting_for));
  EXPECT_THAT([&] { result.fetch(Deadline::after(Duration::zero())); },
              throws_error(ErrorCode::deadline_exceeded,
                           "[coordinator.fetch] expected the closure to end within 0 s"));
  EXPECT_THAT(
      [&] { result.fetch(); },
      throws_error(ErrorCode::deadline_exceeded,
                   "[coordinator.fetch] no closure has ended for 0.05 s; " + still_waiting_for));
  EXPECT_THAT([&] { runtime->join(std::nullopt); },
              throws_error(ErrorCode::deadline_exceeded, "[coordinator.join] no closure"));
}

// Regression: join(timeout) had no other limit: a loop of such calls waited for ever, and so did
// schedule() after it.
TEST_F(CoordinatorTest, JoinsWithADeadlineGiveUpWhenNothingEnds) {
  worker.answers = false;
  const auto runtime = start({.progress_timeout = std::chrono::milliseconds(50)});
  const RemoteValue result = runtime->schedule(nothing, {});
  const auto gives_up =
      throws_error(ErrorCode::deadline_exceeded, "no closure has ended for 0.05 s; still waiting");
  EXPECT_THAT([&] { runtime->join(std::chrono::hours(1)); }, gives_up);
  EXPECT_THAT([&] { result.fetch(Deadline::after(std::chrono::hours(1))); }, gives_up);
  const Deadline patience = Deadline::after(std::chrono::minutes(1));
  EXPECT_THAT(
      [&] {
        while (!runtime->join(std::chrono::milliseconds(1)) && !patience.has_expired()) {
        }
      },
      gives_up);
}

// Regression: such a timeout overflowed, and every join and fetch failed at once.
TEST_F(CoordinatorTest, ADataTimeoutCanBeForEver) {
  const auto runtime = start({.progress_timeout = Duration::max()});
  runtime->schedule(nothing, {}).fetch(patience());
  EXPECT_TRUE(runtime->join(std::chrono::minutes(1)));
}

TEST_F(CoordinatorTest, ThePatienceOfCallersIsTwiceThatOfWorkers) {
  worker.answers = false;
  ParameterServerStrategy hasty(
      testing::cluster_of({&ps, &worker}),
      {.cluster = {.data_timeout = std::chrono::milliseconds(25), .job_id = testing::kFakeJob}});
  ClusterCoordinator coordinator(hasty);
  coordinator.schedule(nothing);
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::deadline_exceeded, "no closure has ended for 0.05 s"));
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::deadline_exceeded, "or raise ClusterOptions::data_timeout"));
  EXPECT_EQ(worker.data_timeout(), std::chrono::milliseconds(25)) << "it did not reach the workers";
}

TEST_F(CoordinatorTest, ABackendThatNoTaskOffersIsNamedWithThoseThatAre) {
  ParameterServerStrategy other(testing::cluster_of({&ps, &worker}),
                                {.cluster = {.job_id = testing::kFakeJob, .backend = "grpc"}});
  EXPECT_THAT([&] { ClusterCoordinator coordinator(other); },
              throws_error(ErrorCode::unimplemented,
                           "which offers: stream; name one of these in ClusterOptions::backend"));
}

TEST_F(CoordinatorTest, ACallAfterTheEndNamesItselfAndTheRemedy) {
  const auto runtime = start({});
  runtime->stop();
  EXPECT_THAT(
      [&] { runtime->schedule(nothing, {}); },
      throws_error(ErrorCode::cancelled, "[coordinator.schedule] expected a running coordinator"));
  EXPECT_THAT([&] { runtime->create_iterator({}, {}); },
              throws_error(ErrorCode::cancelled,
                           "[coordinator.create_iterator] expected a running coordinator, got "
                           "one whose last handle was destroyed; keep the ClusterCoordinator"));
}

// Regression: the error named every worker.
TEST_F(CoordinatorTest, OnlyWorkersThatOweAnEndAreNamed) {
  FakeTask busy("worker:1");
  busy.answers = false;
  ParameterServerStrategy both(testing::cluster_of({&ps, &worker, &busy}),
                               {.cluster = {.job_id = testing::kFakeJob}});
  ClusterCoordinator coordinator(
      both, {.in_flight_per_worker = 1, .progress_timeout = std::chrono::milliseconds(50)});
  std::vector<RemoteValue> results;
  EXPECT_TRUE(await([&] {  // two at a time: one for each
    for (int i = 0; i < 2; ++i) results.push_back(coordinator.schedule(nothing));
    return !busy.closures().empty();
  }));
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::deadline_exceeded,
                           "still waiting for worker:1; 1 closures in flight, 0 queued"));
  for (const RemoteValue& result : results) {
    if (result.is_ready()) continue;
    EXPECT_THAT([&] { result.fetch(); },
                throws_error(ErrorCode::deadline_exceeded,
                             "still waiting for worker:1, which runs its closure; 1 closures"));
  }
}

// Regression: the reason was logged twice a second, and the errors of waiting calls lacked it.
TEST_F(CoordinatorTest, WhyAWorkerCannotBeUsedIsSaidOnceAndToThoseWhoWait) {
  std::atomic<int> lines = 0;
  set_log_sink([&](LogLevel, std::string_view line) {
    if (line.find("cannot be used yet") != std::string_view::npos) ++lines;
  });
  worker.on_register = [&](const rpc::FunctionBody&) {
    COHORT_CHECK(++asked == 1, ErrorCode::permission_denied, "you again");
  };
  const auto runtime = start({.progress_timeout = std::chrono::milliseconds(50)});
  runtime->schedule(nothing, {}).fetch(patience());
  worker.close_channels();
  EXPECT_TRUE(await([&] { return asked >= 3; }));
  runtime->schedule(nothing, {});
  EXPECT_THAT([&] { runtime->join(std::nullopt); },
              throws_error(ErrorCode::deadline_exceeded, "worker:0 (away: you again)"));
  runtime->stop();
  set_log_sink(nullptr);
  EXPECT_EQ(lines, 1);
}

TEST_F(CoordinatorTest, ADataBackendThatATaskDoesNotOfferIsRefusedByName) {
  ParameterServerStrategy other(
      testing::cluster_of({&ps, &worker}),
      {.cluster = {.timeout = kTimeout, .job_id = testing::kFakeJob, .backend = "grpc"}});
  EXPECT_THAT([&] { other.variable("v", at::ones({})); },
              throws_error(ErrorCode::unimplemented,
                           "expected data backend 'grpc' at ps:0, which offers: stream; name one"));
}

}  // namespace
}  // namespace cohort
