// SPDX-License-Identifier: Apache-2.0
// The values that a closure gets, and the warnings about closures for which nobody waits.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <optional>

#include "cohort/core/log.h"
#include "cohort/data/iterator.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/failing_allocator.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::throws_error;
using End = rpc::ClosureEnd;

// The worker takes one closure at a time and ends none by itself.
class CoordinatorArguments : public testing::CoordinatorFixture {
 protected:
  CoordinatorArguments() { worker.answers = false; }
  ~CoordinatorArguments() override { set_log_sink(nullptr); }

  ClusterCoordinator& coordinator() {
    if (!coordinator_)
      coordinator_.emplace(strategy(), CoordinatorOptions{.in_flight_per_worker = 1});
    return *coordinator_;
  }
  // The argument of closure `number`, counted from 1, after those before it have ended.
  at::Tensor input_of(std::uint64_t number) {
    for (std::uint64_t i = 1; i <= number; ++i) {
      EXPECT_TRUE(worker.await_closures(i));
      if (i < number) worker.end({{.closure_id = i}});
    }
    return worker.closures().at(number - 1).inputs.at(0);
  }
  // Collects the log from now on.
  void log_lines() {
    set_log_sink([this](LogLevel, std::string_view line) {
      const Lock lock(mutex_);
      log_ += line;
    });
  }
  std::string log() {
    const Lock lock(mutex_);
    return log_;
  }

  std::optional<ClusterCoordinator> coordinator_;

 private:
  Mutex mutex_;
  std::string log_ COHORT_GUARDED_BY(mutex_);
};

// Regression: if another call of the function had an iterator there, the error was std::bad_cast.
TEST_F(CoordinatorArguments, ARemoteValueIsRefusedAlsoInPlaceOfAnIterator) {
  const PerWorkerIterator it =
      coordinator().create_per_worker_dataset(Dataset::range(4)).iterator();
  const RemoteValue value = coordinator().schedule(nothing, it);
  EXPECT_THAT([&] { coordinator().schedule(nothing, value); },
              throws_error(ErrorCode::invalid_argument,
                           "got a remote value; fetch() a remote value first"));
}

// Regression: the error advised to make strings dense.
TEST_F(CoordinatorArguments, OfStringsAreRefusedWithWhatTurnsThemIntoNumbers) {
  const StringTensor cities({2}, {"Lima", "Rome"});
  const auto schedule = [&] { coordinator().schedule(nothing, at::zeros({}), cities); };
  EXPECT_THAT(schedule, throws_error(ErrorCode::invalid_argument,
                                     "[coordinator.schedule] expected tensors of numbers, got "
                                     "strings (argument 1 of 'nothing'); turn strings into "
                                     "numbers in the input pipeline"));
  EXPECT_THAT(schedule, throws_error(ErrorCode::invalid_argument, "data::lookup()"));
  const Nest user = Nest::map({{"age", at::zeros({})}, {"city", cities}});
  EXPECT_THAT([&] { coordinator().schedule(nothing, user); },
              throws_error(ErrorCode::invalid_argument, "got strings in field 'city' (argument 0"));
}

// Regression: values were read when the closure was sent: a buffer that was filled again gave 191
// of 200 wrong results.
TEST_F(CoordinatorArguments, AreThoseOfTheCall) {
  at::Tensor reused = at::zeros({3});
  std::array<float, 3> numbers{1, 1, 1};
  at::Tensor borrowed = at::from_blob(numbers.data(), {3});
  coordinator().schedule(nothing, at::zeros({3}));
  for (const float value : {2.0F, 3.0F}) {
    reused.fill_(value);
    coordinator().schedule(nothing, reused);
    numbers.fill(value);
    coordinator().schedule(nothing, borrowed);
    coordinator().schedule(nothing, Nest::list({at::from_blob(numbers.data(), {3})}));
  }
  reused.fill_(9);
  numbers.fill(9);
  for (std::uint64_t i = 2; i <= 7; ++i) {
    EXPECT_TRUE(input_of(i).equal(at::full({3}, i <= 4 ? 2.0 : 3.0))) << i;
  }
}

TEST_F(CoordinatorArguments, PartsOfTensorsAreThoseOfTheCallToo) {
  at::Tensor whole = at::zeros({4, 3});
  coordinator().schedule(nothing, at::zeros({3}));
  for (int i = 0; i < 4; ++i) coordinator().schedule(nothing, whole.select(0, i));
  coordinator().schedule(nothing, whole.t().select(0, 1));
  whole.fill_(9);
  for (std::uint64_t i = 2; i <= 6; ++i) EXPECT_EQ(input_of(i).sum().item<float>(), 0) << i;
}

// Regression: the signature shared the caller's tensor, so that t_() and requires_grad_() changed
// it too.
TEST_F(CoordinatorArguments, WithOtherShapesOrFlagsNeedAnotherTrace) {
  worker.answers = true;
  const Function step([](at::Tensor x) { return x.sum(); });
  at::Tensor argument = at::ones({2, 3});
  coordinator().schedule(step, argument);
  EXPECT_EQ(coordinator().statistics().traces, 1U);
  argument.t_();
  coordinator().schedule(step, argument);
  EXPECT_EQ(coordinator().statistics().traces, 2U);
  argument.requires_grad_();
  coordinator().schedule(step, argument);
  EXPECT_EQ(coordinator().statistics().traces, 3U);
  coordinator().schedule(step, argument);
  EXPECT_EQ(coordinator().statistics().traces, 3U);
}

// Regression: a worker made two tensors of one, so its gradient was half of the eager one; and the
// graph of an argument had no gradients.
TEST_F(CoordinatorArguments, HaveNoGraphAndAreNoOtherArgumentToo) {
  worker.answers = true;
  const auto body = [](at::Tensor x, at::Tensor y) { return x.mul(y).sum(); };
  const at::Tensor x = at::ones({2}).requires_grad_();
  for (const bool is_eager : {false, true}) {
    ClusterCoordinator coordinator(strategy(), {.run_eagerly = is_eager});
    const Function mul(body, {.name = "mul"});
    EXPECT_THAT([&] { coordinator.schedule(mul, x, x); },
                throws_error(ErrorCode::invalid_argument,
                             "got it twice (the second is argument 1 of 'mul')"));
    EXPECT_THAT(
        [&] { coordinator.schedule(mul, at::ones({2}), x.mul(2)); },
        throws_error(ErrorCode::invalid_argument,
                     "computed from tensors that require a gradient (argument 1 of 'mul')"));
    EXPECT_NO_THROW(coordinator.schedule(mul, x, x.detach()));
    EXPECT_NO_THROW(coordinator.schedule(mul, x.detach(), x.detach()));
    coordinator.join();
  }
}

// read() returns a graph; the value must be usable nevertheless.
TEST_F(CoordinatorArguments, MayBeWhatWasReadFromAVariableOfThisProcess) {
  worker.answers = true;
  const Variable local = local_variable("local", at::full({2}, 3.F));
  for (const bool is_eager : {false, true}) {
    ClusterCoordinator coordinator(strategy(), {.run_eagerly = is_eager});
    const Function step([](at::Tensor x) {
      EXPECT_FALSE(x.requires_grad());
      return x.sum();
    });
    coordinator.schedule(step, local.read());
    coordinator.schedule(step, local.read() * 2);
    coordinator.join();
    EXPECT_THAT([&] { coordinator.schedule(step, local.read() + local.tensor()); },
                throws_error(ErrorCode::invalid_argument, "expected arguments without a graph"));
  }
  EXPECT_EQ(worker.closures().at(1).inputs.at(0).sum().item<float>(), 12);
}

// Regression: the step got the values of the variable's creation or of the last trace.
TEST_F(CoordinatorArguments, AreNoStandInsOfVariables) {
  worker.answers = true;
  const Variable w = strategy().variable("w", at::ones({2}));
  const Variable count = strategy().variable("n", at::zeros({2}), {.is_trainable = false});
  const Function step([](at::Tensor x) { return x.sum(); }, {.name = "step"});
  const Function draw([](Iterator& it, at::Tensor x) { return it.next<at::Tensor>() + x; });
  const auto refused = [](const std::string& call, const std::string& name) {
    return throws_error(ErrorCode::invalid_argument,
                        "[coordinator." + call + "] expected a value, got tensor() of variable '" +
                            name + "', or what was computed from it");
  };
  for (const bool is_eager : {false, true}) {
    ClusterCoordinator coordinator(strategy(), {.run_eagerly = is_eager});
    EXPECT_THAT([&] { coordinator.schedule(step, w.tensor()); }, refused("schedule", "w"));
    EXPECT_THAT([&] { coordinator.schedule(step, w.tensor() * 2); },
                throws_error(ErrorCode::invalid_argument,
                             "computed from it (argument 0 of 'step'): outside of a step"));
    EXPECT_THAT([&] { coordinator.schedule(step, w.tensor().detach()[0]); },
                refused("schedule", "w"));
    EXPECT_THAT([&] { coordinator.schedule(step, count.tensor()); }, refused("schedule", "n"));
    EXPECT_THAT([&] { coordinator.run_epoch(draw, Dataset::range(1), count.tensor()); },
                refused("schedule", "n"));
    EXPECT_THAT([&] { coordinator.fetch(Nest::list({1, w.tensor()})); }, refused("fetch", "w"));
  }
}

TEST_F(CoordinatorArguments, MayBeStandInsWhereTheseAreCurrent) {
  ps.on_request = [](const rpc::Frame& request) {
    if (static_cast<rpc::MessageType>(request.type) == rpc::MessageType::pull)
      return rpc::to_frame(rpc::PullReply{.values = {at::full({2}, 5.F)}, .versions = {}});
    return static_cast<rpc::MessageType>(request.type) == rpc::MessageType::push
               ? rpc::to_frame(rpc::PushReply{})
               : rpc::Frame{.type = request.type};
  };
  const Variable w = strategy().variable("w", at::ones({2}));
  strategy().run([&] { coordinator().schedule(nothing, w.tensor().detach()); });
  EXPECT_EQ(input_of(1).sum().item<float>(), 10);
}

// Regression: after the failure no message was sent to the worker any more.
TEST_F(CoordinatorArguments, WithoutMemoryToSendThemTheWorkerIsLostAndComesBack) {
  worker.answers = true;
  const Function step([](at::Tensor x) { return x.sum(); });
  for (const at::Tensor& argument : {at::ones({2, 3}).t(), at::ones({2, 4})}) {
    coordinator().schedule(step, argument);
    bool has_failed = true;
    for (int failures = 0; has_failed && failures < 20; ++failures) {
      has_failed = false;
      try {
        const testing::FailingAllocator::After limit(failures);
        coordinator().schedule(step, argument);
      } catch (const std::exception&) {
        has_failed = true;
      }
      coordinator().schedule(step, argument);
      EXPECT_TRUE(coordinator().join(std::chrono::seconds(60))) << "after failure " << failures;
    }
    EXPECT_FALSE(has_failed);
  }
}

// Regression: the first report put the closure back and the second ended it; no message was sent to
// the worker any more.
TEST_F(CoordinatorArguments, TwoEndsOfOneClosureInAReportDoNoHarm) {
  coordinator().schedule(nothing, at::ones({3}));
  coordinator().schedule(nothing, at::ones({3}));
  ASSERT_TRUE(worker.await_closures(1));
  worker.answers = true;
  worker.end({{.closure_id = 1, .status = End::Status::cancelled}, {.closure_id = 1}});
  EXPECT_TRUE(coordinator().join(std::chrono::seconds(60)));
}

// Regression: no warning appeared, and the program ended with success.
TEST_F(CoordinatorArguments, ClosuresThatNobodyWaitedForAreCountedInAWarning) {
  for (int i = 0; i < 3; ++i) coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  log_lines();
  coordinator_.reset();
  EXPECT_THAT(log(), HasSubstr("3 closures that had not ended"));
  EXPECT_THAT(log(), HasSubstr("call join()"));
}

// Regression: the log advised a call that the program could not have made.
TEST_F(CoordinatorArguments, OneThatGoesByAnExceptionGivesNoAdvice) {
  coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  log_lines();
  try {
    const std::optional<ClusterCoordinator> goes = std::move(coordinator_);
    coordinator_.reset();
    throw Error(ErrorCode::internal, "of the program");
  } catch (const Error&) {
  }
  EXPECT_EQ(log(), "");
}

TEST_F(CoordinatorArguments, AnErrorThatNobodyAskedForIsLogged) {
  const RemoteValue result = coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1,
               .status = End::Status::failed,
               .error = Error(ErrorCode::out_of_range, "the data has ended")}});
  ASSERT_TRUE(await([&] { return result.is_ready(); }));
  log_lines();
  coordinator_.reset();
  EXPECT_THAT(log(), HasSubstr("the data has ended"));
  EXPECT_THAT(log(), HasSubstr("call join()"));
}

TEST_F(CoordinatorArguments, ACoordinatorWhoseWorkWasJoinedGoesSilently) {
  coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  worker.end({{.closure_id = 1}});
  coordinator().join();
  log_lines();
  coordinator_.reset();
  EXPECT_EQ(log(), "");
}

// Regression: a log line claimed that closures run elsewhere, though no other worker exists.
TEST_F(CoordinatorArguments, ThatNoWorkerIsLeftIsSaid) {
  coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  log_lines();
  worker.close_channels();
  EXPECT_TRUE(await([&] { return log().find("no worker is left") != std::string::npos; }));
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1}});
  coordinator().join();
}

// Regression: the log said that such a worker is back, but not that it was lost.
TEST_F(CoordinatorArguments, ThatAWorkerReportedItsLossIsSaid) {
  coordinator().schedule(nothing);
  ASSERT_TRUE(worker.await_closures(1));
  log_lines();
  worker.end({{.closure_id = 1,
               .status = End::Status::failed,
               .error = Error(ErrorCode::unavailable, "it ends").at("worker:0")}});
  EXPECT_TRUE(await([&] { return log().find("lost worker:0: it ends") != std::string::npos; }));
  ASSERT_TRUE(worker.await_closures(2));
  worker.end({{.closure_id = 1}});
  coordinator().join();
}

// Regression: a log line claimed that steps run elsewhere, though no other worker has their part of
// the data.
TEST_F(CoordinatorArguments, ThatAnEpochWaitsForALostWorkerIsSaid) {
  const auto has_line = [&](const char* text) {
    return await([&] { return log().find(text) != std::string::npos; });
  };
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); });
  {
    const Epoch epoch = coordinator().begin_epoch(draw, Dataset::range(3));
    log_lines();
    worker.close_channels();
    ASSERT_TRUE(has_line("lost worker:0"));
    EXPECT_THAT(log(), AllOf(HasSubstr("the epoch waits until it returns"),
                             HasSubstr("closures outside the epoch run elsewhere"),
                             Not(HasSubstr("; its closures run elsewhere"))));
    ASSERT_TRUE(has_line("worker:0 is back"));
  }
  worker.close_channels();
  EXPECT_TRUE(has_line("; its closures run elsewhere until it returns")) << "of no epoch any more";
}

}  // namespace
}  // namespace cohort
