// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/closure_runner.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "cohort/function/registry.h"
#include "cohort/function/trace.h"
#include "cohort/testing/channel_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::patience;
using testing::Promised;
using Tensors = std::vector<at::Tensor>;

// kPicky has no program for what it gets; kUnknown was never registered.
constexpr std::uint32_t kConstant = 0;
constexpr std::uint32_t kEcho = 1;
constexpr std::uint32_t kBlocked = 2;
constexpr std::uint32_t kPicky = 3;
constexpr std::uint32_t kUnknown = 4;
constexpr std::uint32_t kThrows = 5;
constexpr std::uint32_t kStuck = 6;  // its result cannot travel
constexpr std::uint32_t kSparse = 7;

Promised<bool>& gate() {
  static Promised<bool> gate;
  return gate;
}

// The blocked one has started.
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

  // Closures numbered on from the last ones, in one batch.
  void enqueue(const std::vector<std::uint32_t>& functions) {
    rpc::RunBatch batch;
    for (const std::uint32_t function : functions) {
      batch.closures.push_back({.closure_id = ++last_, .function_id = function, .inputs = inputs_});
    }
    runner_->enqueue(std::move(batch), sender_);
  }
  // At least so many, each of them once.
  void wait_for_ends(std::size_t count) {
    const Lock lock(mutex_);
    EXPECT_TRUE(changed_.wait(mutex_, patience(), [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS {
      return ends_.size() >= count;
    })) << "a closure has not been reported";
  }
  int ends_of(std::uint64_t closure) {
    const Lock lock(mutex_);
    const auto found = ends_.find(closure);
    return found == ends_.end() ? 0 : found->second;
  }
  // Of a closure that has been reported.
  Error error_of(std::uint64_t closure) {
    const Lock lock(mutex_);
    const auto found = errors_.find(closure);
    return found == errors_.end() ? Error(ErrorCode::unknown, "none") : found->second;
  }

  Tensors inputs_ = {at::ones({2})};
  std::atomic<bool> may_fail_ = false;

 private:
  void note(rpc::Frame frame) {
    const Lock lock(mutex_);
    for (const rpc::ClosureEnd& end : rpc::completed_of(std::move(frame)).ends) {
      EXPECT_TRUE(may_fail_ || end.status == rpc::ClosureEnd::Status::ok);
      ++ends_[end.closure_id];
      if (end.error) errors_.insert_or_assign(end.closure_id, *end.error);
    }
    changed_.notify_all();
  }

  Mutex mutex_;
  Condition changed_;
  std::map<std::uint64_t, int> ends_ COHORT_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Error> errors_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t last_ = 0;
  testing::ChannelPair channel_{"inprocess",
                                {.on_frame = [this](rpc::Frame frame) { note(std::move(frame)); }}};

 protected:
  std::shared_ptr<ClosureTables> tables_ = std::make_shared<ClosureTables>(ParameterLinkOptions{});
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

// It was held back for the next one's end, which was short the last time.
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
  EXPECT_EQ(runner_->closures_run(), 2U);
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

// Later traces may capture more, and the coordinator does not know which program it will be.
TEST_F(ClosureRunnerTest, AProgramTakesItsInputsAndLeavesWhatOnlyOthersHave) {
  inputs_ = {at::ones({2}), at::ones({}), at::ones({})};
  enqueue({kConstant});
  wait_for_ends(1);
  EXPECT_EQ(ends_of(1), 1);
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

// Sending it failed, which was taken for a closed channel: the ends of all in the batch were lost.
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

// An error with the code of a lost task cost the worker its closures, a hundred times.
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

// Whoever ended the runner waited for it, for ever with one that does not end.
TEST_F(ClosureRunnerTest, AClosureThatDoesNotEndIsLeftBehindWithWhatItUses) {
  may_fail_ = true;
  enqueue({kBlocked, kEcho});
  entered().take();
  EXPECT_FALSE(runner_->end(Deadline::after(Duration::zero())));
  EXPECT_EQ(ClosureRunner::left_behind(), 1);
  const std::weak_ptr<ClosureTables> used = tables_;
  runner_ = ClosureRunner::start({.task = "worker:0"}, std::exchange(tables_, nullptr));
  runner_->end(patience());
  runner_ = ClosureRunner::start({.task = "worker:0"},
                                 std::make_shared<ClosureTables>(ParameterLinkOptions{}));
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
  EXPECT_THAT(error_of(1).message(), HasSubstr("got number 4, which is not here; perhaps the task "
                                               "was restarted"));
}

// It connected anew, and waited for the answer.
TEST(ParameterLinks, AfterTheEndAClosureReachesNoParameterServer) {
  ParameterLinks links({.addresses = {"127.0.0.1:1"}, .self = {.task = "worker:0"}});
  links.close();
  EXPECT_THAT([&] { links.get(0); }, testing::throws_error(ErrorCode::cancelled, "worker:0 ends"));
}

}  // namespace
}  // namespace cohort::server
