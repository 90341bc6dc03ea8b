// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/closure_runner.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cohort/function/registry.h"
#include "cohort/function/trace.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/fake_task.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::patience;
using testing::Promised;
using Tensors = std::vector<at::Tensor>;

// kPicky has no program for its arguments; kUnknown was never registered.
constexpr std::uint32_t kConstant = 0;
constexpr std::uint32_t kEcho = 1;
constexpr std::uint32_t kBlocked = 2;
constexpr std::uint32_t kPicky = 3;
constexpr std::uint32_t kUnknown = 4;
constexpr std::uint32_t kThrows = 5;
constexpr std::uint32_t kStuck = 6;  // its result cannot be sent
constexpr std::uint32_t kSparse = 7;

Promised<bool>& gate() {
  static Promised<bool> gate;
  return gate;
}

// Whether the blocked function has started.
Promised<bool>& entered() {
  static Promised<bool> entered;
  return entered;
}

const bool kAreRegistered = [] {
  function::register_function("closure_runner_test.echo", [](Tensors inputs) { return inputs; });
  function::register_function("closure_runner_test.blocked", [](Tensors) {
    entered().set(true);
    gate().take();
    return Tensors();
  });
  function::register_function("closure_runner_test.throws", [](Tensors inputs) -> Tensors {
    if (inputs[0].size(0) == 2)
      throw Error(ErrorCode::unavailable, "no more", ErrorCause::peer_lost).at("ps:0");
    return {inputs[0].add(at::ones({inputs[0].size(0) + 1}))};
  });
  function::register_function("closure_runner_test.stuck", [](Tensors) {
    return Tensors{at::ones({}), at::Tensor()};
  });
  return true;
}();

Bytes traced_constant() {
  const Tensors inputs = {at::ones({2})};
  return function::trace(inputs, {at::full({2}, 3.0)},
                         [](const Tensors&) { return Tensors{at::full({}, 7, at::kLong)}; }, {})
      .bytes;
}

Bytes traced_for_three() {
  return function::trace({at::ones({3})}, {at::full({3}, 2.0)},
                         [](const Tensors& inputs) { return Tensors{inputs[0].add(1)}; }, {})
      .bytes;
}

Bytes traced_sparse() {
  const Tensors inputs = {at::ones({2})};
  return function::trace(inputs, {at::full({2}, 3.0)},
                         [](const Tensors& given) { return Tensors{given[0].to_sparse()}; }, {})
      .bytes;
}

class ClosureRunnerTest : public ::testing::Test {
 protected:
  ClosureRunnerTest() {
    if (entered().is_set()) entered().take();
    FunctionTable& functions = tables_->functions;
    functions.put({.id = kConstant, .name = "constant", .programs = {traced_constant()}});
    functions.put({.id = kEcho, .registered_name = "closure_runner_test.echo"});
    functions.put({.id = kPicky, .name = "picky", .programs = {traced_for_three()}});
    functions.put({.id = kThrows, .registered_name = "closure_runner_test.throws"});
    functions.put({.id = kStuck, .name = "stuck", .registered_name = "closure_runner_test.stuck"});
    functions.put({.id = kSparse, .name = "sparse", .programs = {traced_sparse()}});
    functions.put({.id = kBlocked, .registered_name = "closure_runner_test.blocked"});
  }
  ~ClosureRunnerTest() override { EXPECT_TRUE(runner_->end(patience())); }

  // Closures in one batch; their numbers follow those of the last batch.
  void enqueue(const std::vector<std::uint32_t>& functions) {
    rpc::RunBatch batch;
    for (const std::uint32_t function : functions) {
      batch.closures.push_back({.closure_id = ++last_, .function_id = function, .inputs = inputs_});
    }
    runner_->enqueue(std::move(batch), sender_);
  }
  // Waits for at least this many ends, each reported once.
  void wait_for_ends(std::size_t count) {
    const Lock lock(mutex_);
    EXPECT_TRUE(changed_.wait(mutex_, patience(), [&]() COHORT_REQUIRES(mutex_) {
      return ends_.size() >= count;
    })) << "a closure has not been reported";
  }
  int ends_of(std::uint64_t closure) {
    const Lock lock(mutex_);
    const auto found = ends_.find(closure);
    return found == ends_.end() ? 0 : found->second;
  }
  // The end of a closure that was reported.
  Error error_of(std::uint64_t closure) {
    const Lock lock(mutex_);
    const auto found = errors_.find(closure);
    return found == errors_.end() ? Error(ErrorCode::unknown, "none") : found->second;
  }

  // The number of its pushes that were answered "not applied".
  std::uint64_t dropped_of(std::uint64_t closure) {
    const Lock lock(mutex_);
    return dropped_[closure];
  }

  Tensors inputs_ = {at::ones({2})};
  std::atomic<bool> may_fail_ = false;

 private:
  void note(rpc::Frame frame) {
    const Lock lock(mutex_);
    for (const rpc::ClosureEnd& end : rpc::message_of<rpc::CompletedBatch>(std::move(frame)).ends) {
      EXPECT_TRUE(may_fail_ || end.status == rpc::ClosureEnd::Status::ok);
      ++ends_[end.closure_id];
      dropped_[end.closure_id] += end.pushes_dropped;
      if (end.error) errors_.insert_or_assign(end.closure_id, *end.error);
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  Condition changed_;
  std::map<std::uint64_t, int> ends_ COHORT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Error> errors_ COHORT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, std::uint64_t> dropped_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t last_ = 0;
  testing::ChannelPair channel_{"inprocess",
                                {.on_frame = [this](rpc::Frame frame) { note(std::move(frame)); }}};

 protected:
  std::shared_ptr<ClosureTables> tables_ =
      std::make_shared<ClosureTables>(parameter_server::ServerLinks::Options{});
  std::shared_ptr<CompletionSender> sender_ = std::make_shared<CompletionSender>(channel_.far);
  std::shared_ptr<ClosureRunner> runner_ = ClosureRunner::start({.task = "worker:0"}, tables_);
};

TEST_F(ClosureRunnerTest, AShortClosureIsReportedWhileTheNextOneRuns) {
  for (const std::uint32_t brief : {kEcho, kConstant}) {
    enqueue({kEcho, brief, kBlocked, brief});
    wait_for_ends(brief == kEcho ? 2 : 6);
    gate().set(true);
    wait_for_ends(brief == kEcho ? 4 : 8);
  }
}

// Regression: the end waited for that of the next closure, because its function was short the last
// time.
TEST_F(ClosureRunnerTest, AShortClosureIsReportedWhileOneRunsThatWasShortBefore) {
  gate().set(true);
  enqueue({kEcho, kBlocked});
  wait_for_ends(2);
  enqueue({kEcho, kBlocked});
  wait_for_ends(3);
  gate().set(true);
  wait_for_ends(4);
}

TEST_F(ClosureRunnerTest, CountsTheClosuresThatEndedWell) {
  may_fail_ = true;
  enqueue({kConstant, kEcho, kUnknown, kPicky});
  wait_for_ends(4);
  EXPECT_EQ(runner_->counts().ended_well, 2U);
}

TEST_F(ClosureRunnerTest, WhatASenderHasLeftIsDroppedWhenItsChannelHasClosed) {
  enqueue({kBlocked});
  entered().take();
  enqueue({kEcho, kEcho});
  runner_->drop(sender_);
  enqueue({kEcho});
  gate().set(true);
  wait_for_ends(2);
  EXPECT_EQ(ends_of(2) + ends_of(3), 0);
  EXPECT_EQ(ends_of(4), 1);
}

// Later traces may capture more inputs, and the coordinator does not know which program will run.
TEST_F(ClosureRunnerTest, AProgramTakesItsInputsAndLeavesWhatOnlyOthersHave) {
  inputs_ = {at::ones({2}), at::ones({}), at::ones({})};
  enqueue({kConstant});
  wait_for_ends(1);
  EXPECT_EQ(ends_of(1), 1);
}

TEST_F(ClosureRunnerTest, SeveralRunAtOnceIfTheCoordinatorAsksForIt) {
  runner_->set_closures_at_once(2);
  enqueue({kBlocked, kEcho, kConstant, kEcho});
  wait_for_ends(3);
  EXPECT_EQ(ends_of(1), 0);
  gate().set(true);
  wait_for_ends(4);
}

TEST_F(ClosureRunnerTest, EveryClosureEndsOnceHoweverManyRunAtOnce) {
  constexpr std::uint64_t kBatches = 200;
  for (std::uint64_t i = 0; i < kBatches; ++i) {
    runner_->set_closures_at_once(1 + i % 4);
    enqueue({kEcho, kConstant, kConstant, kEcho});
  }
  wait_for_ends(4 * kBatches);
  for (std::uint64_t closure = 1; closure <= 4 * kBatches; ++closure)
    EXPECT_EQ(ends_of(closure), 1) << closure;
}

TEST_F(ClosureRunnerTest, EveryClosureEndsOnceWhereverItRuns) {
  constexpr std::uint64_t kBatches = 300;
  for (std::uint64_t i = 0; i < kBatches; ++i)
    enqueue({kConstant, kConstant, i % 7 ? kConstant : kEcho});
  wait_for_ends(3 * kBatches);
  for (std::uint64_t closure = 1; closure <= 3 * kBatches; ++closure) {
    EXPECT_EQ(ends_of(closure), 1) << closure;
  }
}

TEST_F(ClosureRunnerTest, WhatIsBehindABlockedClosureWaitsForIt) {
  enqueue({kConstant});
  wait_for_ends(1);
  enqueue({kBlocked});
  enqueue({kConstant, kConstant});
  EXPECT_EQ(ends_of(3), 0);
  gate().set(true);
  wait_for_ends(4);
}

// Regression: if the result could not be sent, the channel was taken for closed, and all ends of
// the batch were lost.
TEST_F(ClosureRunnerTest, AResultThatCannotTravelFailsItsClosureAlone) {
  may_fail_ = true;
  enqueue({kConstant, kStuck, kSparse, kConstant});
  wait_for_ends(4);
  EXPECT_EQ(error_of(1).message(), "none");
  EXPECT_EQ(error_of(4).message(), "none");
  EXPECT_EQ(error_of(2).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of(2).cause(), ErrorCause::application);
  EXPECT_THAT(error_of(2).message(),
              HasSubstr("an undefined tensor (tensor 1 of function 'stuck')"));
  EXPECT_THAT(error_of(3).message(),
              HasSubstr("of a sparse layout (tensor 0 of function 'sparse')"));
}

TEST_F(ClosureRunnerTest, EndsThatCannotBeSentAreReportedAsFailed) {
  may_fail_ = true;
  sender_->end({.closure_id = 1}, true);
  sender_->end({.closure_id = 2, .tensors = {at::Tensor()}}, false);
  wait_for_ends(2);
  for (const std::uint64_t closure : {1U, 2U}) {
    EXPECT_EQ(error_of(closure).code(), ErrorCode::invalid_argument);
    EXPECT_EQ(error_of(closure).cause(), ErrorCause::application);
  }
}

// Regression: an error of user code with the code of a lost task counted as the loss of the worker.
TEST_F(ClosureRunnerTest, WhatARegisteredFunctionThrowsIsAnErrorOfTheProgram) {
  may_fail_ = true;
  enqueue({kThrows});
  inputs_ = {at::ones({4})};
  enqueue({kThrows});
  wait_for_ends(2);
  EXPECT_EQ(error_of(1).code(), ErrorCode::unavailable);
  EXPECT_EQ(error_of(1).cause(), ErrorCause::application);
  EXPECT_EQ(error_of(2).cause(), ErrorCause::application);
  EXPECT_THAT(error_of(2).message(), HasSubstr("must match"));
  EXPECT_THAT(error_of(2).message(), Not(HasSubstr("frame #"))) << "a backtrace of this machine";
}

// Regression: the end of the runner waited without a deadline, and so for ever if the closure did
// not end.
TEST_F(ClosureRunnerTest, AClosureThatDoesNotEndIsLeftBehindWithWhatItUses) {
  may_fail_ = true;
  enqueue({kBlocked, kEcho});
  entered().take();
  EXPECT_FALSE(runner_->end(Deadline::after(Duration::zero())));
  EXPECT_EQ(ClosureRunner::left_behind(), 1);
  const std::weak_ptr<ClosureTables> used = tables_;
  runner_ = ClosureRunner::start({.task = "worker:0"}, std::exchange(tables_, nullptr));
  runner_->end(patience());
  runner_ = ClosureRunner::start(
      {.task = "worker:0"},
      std::make_shared<ClosureTables>(parameter_server::ServerLinks::Options{}));
  EXPECT_FALSE(used.expired());
  gate().set(true);
  const Deadline deadline = patience();
  while (!used.expired() && !deadline.has_expired()) std::this_thread::yield();
  EXPECT_TRUE(used.expired()) << "it has gone with the closure";
  EXPECT_EQ(ClosureRunner::left_behind(), 0);
  EXPECT_EQ(ends_of(2), 0) << "it had not started";
}

TEST_F(ClosureRunnerTest, AFunctionThatIsNotHereIsNamedWithTheRemedy) {
  may_fail_ = true;
  enqueue({kUnknown});
  wait_for_ends(1);
  EXPECT_EQ(error_of(1).cause(), ErrorCause::function_missing);
  EXPECT_THAT(error_of(1).message(), HasSubstr("got one that is not here; perhaps the task was "
                                               "restarted"));
}

// Updates a variable on each of two parameter servers and then reads both, so it has two segments.
Bytes traced_with_segments() {
  const at::Tensor a = at::zeros({}), b = at::zeros({});
  const auto traced = [](const char* name, const at::Tensor& tensor) {
    return function::TracedVariable{.name = name, .is_trainable = false, .tensor = tensor};
  };
  const function::TracedVariable variables[] = {traced("a", a), traced("b", b)};
  function::TraceOptions options;
  options.variable_of = [&](const void* storage) -> const function::TracedVariable* {
    for (const auto& variable : variables)
      if (variable.tensor.storage().unsafeGetStorageImpl() == storage) return &variable;
    return nullptr;
  };
  const function::TraceBody body = [&](const Tensors&) {
    for (const at::Tensor& variable : {a, b})
      function::Trace::current()->update(
          variable, internal::write_effect(internal::Effect::Kind::assign_add, at::ones({})));
    return Tensors{a.mul(2).add(b)};
  };
  return function::trace({at::ones({2})}, {at::full({2}, 3.0)}, body, options).bytes;
}

// A closure with a push to each of two parameter servers before its last segment.
class SegmentPushesTest : public ClosureRunnerTest {
 protected:
  static constexpr std::uint32_t kSegments = 8;

  SegmentPushesTest() {
    may_fail_ = true;
    for (testing::FakeTask* const ps : {&ps0_, &ps1_})
      ps->on_request = [this, ps](const rpc::Frame& request) { return answer(*ps, request); };
  }
  void run_with(std::vector<std::string> addresses) {
    EXPECT_TRUE(runner_->end(patience()));
    tables_ = std::make_shared<ClosureTables>(parameter_server::ServerLinks::Options{
        .self = "worker:0", .connect = [](const rpc::Member& server, Duration, const auto&) {
          return rpc::connect_task(
              {.address = server.address,
               .task = server.task,
               .caller = rpc::identity_of_process("worker:0", testing::kFakeJob, 3),
               .deadline = Deadline::after(std::chrono::seconds(60))});
        }});
    rpc::Membership membership;
    for (std::size_t i = 0; i < addresses.size(); ++i)
      membership.servers.push_back({i, "ps:" + std::to_string(i), addresses[i]});
    tables_->servers->set(membership);
    tables_->placement.take(
        {.slices = {{.variable = 1, .server = 0}, {.variable = 2, .server = 1}}});
    tables_->functions.put({.id = kSegments,
                            .name = "segments",
                            .programs = {traced_with_segments()},
                            .variables = {{"a", 1}, {"b", 2}}});
    runner_ = ClosureRunner::start({.task = "worker:0"}, tables_);
    enqueue({kSegments});
    wait_for_ends(1);
  }
  rpc::Frame answer(const testing::FakeTask& ps, const rpc::Frame& request) {
    if (static_cast<rpc::MessageType>(request.type) != rpc::MessageType::push)
      return rpc::to_frame(rpc::PullReply{.values = {at::ones({})}});
    ++pushes_;
    if (ps.task() == failing_) throw Error(ErrorCode::unavailable, "just now").at(ps.task());
    rpc::PushReply reply{.was_applied = ps.task() != dropping_};
    if (rpc::message_of<rpc::PushRequest>(request).pull)
      reply.pulled = rpc::PullReply{.values = {at::ones({})}};
    return rpc::to_frame(std::move(reply));
  }

  std::string dropping_, failing_;
  std::atomic<int> pushes_ = 0;
  testing::FakeTask ps0_{"ps:0"}, ps1_{"ps:1"};
};

TEST_F(SegmentPushesTest, WhatIsAppliedEndsWell) {
  run_with({ps0_.address(), ps1_.address()});
  EXPECT_EQ(error_of(1).message(), "none");
  EXPECT_EQ(dropped_of(1), 0U);
  EXPECT_EQ(pushes_.load(), 2);
}

// Regression: the error was thrown before the other answer was examined. The closure ran again, and
// its dropped push counted as one of a retry, so an update was missing without an error.
TEST_F(SegmentPushesTest, ADropBesideAnErrorIsCounted) {
  dropping_ = "ps:0";
  failing_ = "ps:1";
  run_with({ps0_.address(), ps1_.address()});
  EXPECT_EQ(error_of(1).origin(), "ps:1");
  EXPECT_EQ(dropped_of(1), 1U);
}

TEST_F(SegmentPushesTest, ADropAfterAnErrorIsCounted) {
  failing_ = "ps:0";
  dropping_ = "ps:1";
  run_with({ps0_.address(), ps1_.address()});
  EXPECT_EQ(error_of(1).origin(), "ps:0");
  EXPECT_EQ(dropped_of(1), 1U);
}

// Regression: the push was sent, but nobody waited for its answer.
TEST_F(SegmentPushesTest, NothingIsPushedWhereAnotherParameterServerCannotBeReached) {
  run_with({ps0_.address()});
  EXPECT_EQ(error_of(1).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(pushes_.load(), 0);
}

}  // namespace
}  // namespace cohort::server
