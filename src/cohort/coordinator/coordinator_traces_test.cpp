// SPDX-License-Identifier: Apache-2.0
// When a coordinator traces, with which elements, and in which mode.
#include <ATen/TensorOperators.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <thread>

#include "cohort/core/log.h"
#include "cohort/data/iterator.h"
#include "cohort/function/tracing_mode.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/coordinator_fixture.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::FakeTask;
using testing::throws_error;

using End = rpc::ClosureEnd;

using CoordinatorTraces = testing::CoordinatorFixture;

class FirstTraceTest : public ::testing::Test {
 protected:
  static rpc::PeekReply one_element() {
    return {.fields = 1, .tensors = {at::ones({}, at::kLong)}};
  }
  void schedule_one() {
    ParameterServerStrategy strategy(testing::cluster_of({&ps, &first, &second}),
                                     {.cluster = {.job_id = testing::kFakeJob}});
    ClusterCoordinator coordinator(strategy);
    const auto data = coordinator.create_per_worker_dataset(Dataset::range(3)).iterator();
    const Function draw([](Iterator& it) { it.next<at::Tensor>(); }, {.name = "draw"});
    coordinator.schedule(draw, data);
    coordinator.join();
  }

  std::atomic<int> asked_ = 0;  // the calls of one on_peek
  FakeTask ps{"ps:0"};
  FakeTask first{"worker:0"};
  FakeTask second{"worker:1"};
};

// Regression: schedule() threw the error of the lost worker.
TEST_F(FirstTraceTest, AWorkerThatGoesWhileItIsAskedIsPassedOver) {
  first.on_peek = [&](const rpc::PeekRequest&) {
    ++asked_;
    first.close_channels();
    return rpc::PeekReply();
  };
  second.on_peek = [](const rpc::PeekRequest&) { return one_element(); };
  schedule_one();
  EXPECT_GT(asked_, 0);
}

TEST_F(FirstTraceTest, TheOnlyWorkerWithDataIsAskedAgainWhenItIsBack) {
  second.on_peek = [&](const rpc::PeekRequest&) {
    if (++asked_ == 1) second.close_channels();
    return one_element();
  };
  schedule_one();
  EXPECT_GT(asked_, 1);
}

// Regression: the message ended in the middle of its sentence.
TEST_F(FirstTraceTest, AnElementThatCannotBeDrawnIsNamedWithItsDatasetAndWorker) {
  first.on_peek = second.on_peek = [](const rpc::PeekRequest&) -> rpc::PeekReply {
    throw Error(ErrorCode::not_found, "no such file");
  };
  try {
    schedule_one();
    FAIL() << "it was traced";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("while drawing an element int64[] of worker:0's "
                                                   "dataset, to trace 'draw' with it"));
  }
}

TEST_F(FirstTraceTest, AWorkerWithoutDataIsPassedOver) {
  first.on_peek = [&](const rpc::PeekRequest&) {
    ++asked_;
    return rpc::PeekReply();
  };
  second.on_peek = [](const rpc::PeekRequest&) { return one_element(); };
  schedule_one();
  EXPECT_GT(asked_, 0);
}

TEST_F(FirstTraceTest, WorkersThatAreAllAwayAreNamedWithTheRemedy) {
  std::optional<FakeTask> only("worker:0");
  ParameterServerStrategy strategy(
      testing::cluster_of({&ps, &*only}),
      {.cluster = {.timeout = std::chrono::seconds(4), .job_id = testing::kFakeJob}});
  ClusterCoordinator coordinator(strategy);
  const auto data = coordinator.create_per_worker_dataset(Dataset::range(3)).iterator();
  only.reset();
  const Function draw([](Iterator& it) { it.next<at::Tensor>(); }, {.name = "draw"});
  EXPECT_THAT([&] { coordinator.schedule(draw, data); },
              throws_error(ErrorCode::unavailable, "expected a worker within 4 s"));
}

TEST_F(FirstTraceTest, ADatasetThatIsEmptyOnEveryWorkerIsAnError) {
  EXPECT_THAT([&] { schedule_one(); },
              throws_error(ErrorCode::out_of_range,
                           "'draw' with, got none: the dataset is empty on every worker"));
}

// Regression: a program that was traced in one mode was also used in the other.
TEST_F(CoordinatorTraces, AFunctionIsTracedOnceForEachModeOfTheCallersThread) {
  std::vector<function::TracingMode> seen;
  const Function step([&] { seen.push_back(function::TracingMode::current()); });
  const function::TracingMode plain;
  const function::TracingMode no_grad{.is_grad_enabled = false};
  const function::TracingMode autocast{.is_autocast_enabled = true, .is_autocast_cached = false};
  ClusterCoordinator coordinator(strategy());
  for (int round = 0; round < 2; ++round) {
    for (const function::TracingMode& mode : {plain, no_grad, autocast}) {
      const function::TracingModeScope scope(mode);
      coordinator.schedule(step);
      coordinator.schedule(nothing);
    }
  }
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_EQ(coordinator.statistics().traces, 3U);
  EXPECT_EQ(worker.functions().size(), 4U) << "a registered one has no mode";
  const std::vector<function::TracingMode> twice_each = {plain,   plain,    no_grad,
                                                         no_grad, autocast, autocast};
  EXPECT_EQ(seen, twice_each);
}

// How long to wait for an event that should not happen, where nothing shows that it never will.
constexpr auto kMoment = std::chrono::milliseconds(200);

class LateTraces : public testing::CoordinatorFixture {
 protected:
  LateTraces() {
    worker.answers = false;
    worker.on_peek = [](const rpc::PeekRequest&) {
      return rpc::PeekReply{.fields = 1, .tensors = {at::ones({4}), at::ones({4}).mul(2)}};
    };
  }
  // The first closure draws an element for which there is no program.
  template <class... Others>
  void schedule(ClusterCoordinator& coordinator, const Function& step, const Others&... others) {
    data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4));
    coordinator.schedule(step, data->iterator(), others...);
    ASSERT_TRUE(worker.await_closures(1));
    worker.end(
        {{.closure_id = 1, .status = End::Status::needs_program, .tensors = {at::ones({3})}}});
  }

  // The first closure arrives once more, with its new program.
  std::thread end_later(std::size_t closures) {
    return std::thread([this, closures] {
      for (std::size_t id = 1; id <= closures; ++id)
        if (worker.await_closures(id + 1)) worker.end({{.closure_id = id}});
    });
  }

  std::optional<PerWorkerDataset> data;
};

// Regression: the function was traced in the mode of the thread that waited for it.
TEST_F(LateTraces, AreInTheModeOfTheScheduledCall) {
  std::vector<function::TracingMode> seen;
  const Function step([&](Iterator& it) {
    it.next<at::Tensor>();
    seen.push_back(function::TracingMode::current());
  });
  ClusterCoordinator coordinator(strategy());
  const function::TracingMode autocast{.is_autocast_enabled = true};
  {
    const function::TracingModeScope scope(autocast);
    schedule(coordinator, step);
  }
  std::thread answer = end_later(1);
  const function::TracingMode before{.is_grad_enabled = false};
  const function::TracingModeScope elsewhere(before);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  answer.join();
  EXPECT_EQ(coordinator.statistics().traces, 2U);
  EXPECT_EQ(seen, std::vector<function::TracingMode>(4, autocast));
  EXPECT_EQ(function::TracingMode::current(), before);
}

// Regression: the time of the trace counted as silence of the worker, which had nothing to do.
TEST_F(LateTraces, AreNoTimeInWhichNothingEnds) {
  constexpr auto kTimeoutOfData = std::chrono::milliseconds(500);
  int calls = 0;
  const Function step([&](Iterator& it) {
    it.next<at::Tensor>();
    if (++calls != 3) return;  // in the second trace
    std::promise<void>().get_future().wait_for(kTimeoutOfData);
  });
  ClusterCoordinator coordinator(strategy(), {.progress_timeout = kTimeoutOfData});
  schedule(coordinator, step);
  std::thread answer = end_later(1);
  EXPECT_NO_THROW(EXPECT_TRUE(coordinator.join(std::chrono::seconds(60))));
  answer.join();
}

// Regression: the next join() traced the step of a destroyed epoch, and waited for the closures on
// its worker.
TEST_F(LateTraces, AreNotMadeForAnEpochThatWasGivenUp) {
  ClusterCoordinator coordinator(strategy(), {.in_flight_per_worker = 4});
  std::atomic<int> calls = 0;
  const auto run = [&] {
    const Function step([&](Iterator& it) { ++calls, it.next<at::Tensor>(); });
    Epoch epoch = coordinator.begin_epoch(
        step, coordinator.create_per_worker_dataset(Dataset::range(70).batch(4)));
    std::thread answer([&] {
      EXPECT_TRUE(worker.await_closures(4));
      worker.end({{.closure_id = 1}, {.closure_id = 2}});
    });
    EXPECT_TRUE(epoch.try_next());
    answer.join();
    worker.end({{.closure_id = 3,
                 .status = End::Status::needs_program,
                 .tensors = {at::ones({3})},
                 .pulled_bytes = 7}});
    EXPECT_TRUE(await([&] { return coordinator.statistics().pulled_bytes == 7; }));
  };
  run();
  const int calls_of_the_epoch = calls;
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)))
      << "what its worker had was not cancelled";
  EXPECT_EQ(calls, calls_of_the_epoch);
}

// Regression: the trace used the value of a constant that was written after schedule().
TEST_F(LateTraces, DoNotSeeConstantsOfAnotherTime) {
  at::Tensor scale = at::ones({1});
  const Function step([&](Iterator& it) { return it.next<at::Tensor>() * scale; });
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, step);
  scale.fill_(2);
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); },
              throws_error(ErrorCode::failed_precondition, "written to or replaced after"));
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

// Regression: the trace read the caller's buffer, and failed with an index that no call had.
TEST_F(LateTraces, DoNotSeeArgumentsOfAnotherTime) {
  const Function step(
      [](Iterator& it, at::Tensor index) { return it.next<at::Tensor>().index_select(0, index); });
  const at::Tensor index = at::zeros({2}, at::kLong);
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, step, index);
  index.fill_(1'000'000'000);
  std::thread answer = end_later(1);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  answer.join();
  EXPECT_EQ(coordinator.statistics().traces, 2U);
}

TEST_F(LateTraces, RefuseASizeThatTheStepReturnsAndSayWhatToReturn) {
  const Function step([](Iterator& it) { return it.next<at::Tensor>().size(0); }, {.name = "step"});
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, step);
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); },
              throws_error(ErrorCode::invalid_argument,
                           "'step' returned another number or text as part 0 of its result for "
                           "another element: it depends on tensors, their sizes or state of the "
                           "host, and every call would return the value of the first trace; return "
                           "a tensor, for example torch::scalar_tensor(x.size(0), torch::kLong)"));
}

// Regression: the closure got the rate of the time of its trace.
TEST_F(LateTraces, FailWhereAHyperparameterWasSetTooOften) {
  Variable w = strategy().variable("w", at::ones({}));
  SGD whole({w}, {.learning_rate = 1}), rest({w}, {.learning_rate = 10});
  const Function step([&](Iterator& it) {
    const bool is_whole = it.next<at::Tensor>().size(0) == 4;
    (is_whole ? whole : rest).minimize(w.tensor().mul(1));
  });
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, step);
  for (int i = 0; i < 5000; ++i) rest.set_learning_rate(2 + i);
  EXPECT_THAT([&] { coordinator.join(std::chrono::seconds(60)); },
              throws_error(ErrorCode::failed_precondition, "set more than 4096 times"));
}

// Regression: an optimizer that only the later trace found did not count the update, so that the
// next closure had the same rate.
TEST_F(LateTraces, CountTheUpdatesOfTheOptimizersThatTheyFind) {
  Variable w = strategy().variable("w", at::ones({}));
  const auto rate = [](std::int64_t i) { return 1.0 / static_cast<double>(i + 1); };
  SGD whole({w}, {.learning_rate = 1}), rest({w}, {.learning_rate = rate});
  const Function step([&](Iterator& it) {
    const bool is_whole = it.next<at::Tensor>().size(0) == 4;
    (is_whole ? whole : rest).minimize(w.tensor().mul(1));
  });
  ClusterCoordinator coordinator(strategy());
  schedule(coordinator, step);
  EXPECT_EQ(rest.iterations(), 0);
  std::thread answer = end_later(1);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  answer.join();
  EXPECT_EQ(whole.iterations(), 1);
  EXPECT_EQ(rest.iterations(), 1);
  const std::vector<at::Tensor> inputs = worker.closures().back().inputs;
  EXPECT_EQ(inputs.at(inputs.size() - 2).item<double>(), 1);  // the rate, before weight_decay
  EXPECT_EQ(rest.learning_rate(), 0.5);
}

// Regression: a call in another thread saw the requires_grad flags that the trace had set.
TEST_F(LateTraces, FlagsAreNotThoseOfOtherCalls) {
  const Variable w = strategy().variable("w", at::ones({}));
  ClusterCoordinator coordinator(strategy());
  std::future<void> other;
  int calls = 0;
  const Function step([&](Iterator& it) {
    const at::Tensor product = it.next<at::Tensor>() * w.tensor();
    if (++calls != 3) return;  // the second trace's first pass
    other = std::async(std::launch::async, [&] { coordinator.schedule(step, data->iterator()); });
    other.wait_for(kMoment);
  });
  schedule(coordinator, step);
  w.tensor().requires_grad_(false);
  std::thread answer = end_later(2);
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  other.get();
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  answer.join();
  EXPECT_EQ(coordinator.statistics().traces, 3U);
  EXPECT_FALSE(w.tensor().requires_grad());
}

// Regression: the step computed with values that the second pass of the trace had changed.
TEST_F(CoordinatorTraces, AStepThatRunsHereSeesNoTraceOfAnotherThread) {
  ps.on_request = [](const rpc::Frame& request) {
    if (static_cast<rpc::MessageType>(request.type) == rpc::MessageType::pull)
      return rpc::to_frame(rpc::PullReply{.values = {at::ones({2})}, .versions = {}});
    return rpc::to_frame(rpc::PushReply{});
  };
  const Variable w = strategy().variable("w", at::ones({2}));
  ClusterCoordinator coordinator(strategy());
  testing::Promised<bool> has_looked;
  std::promise<void> in_second_pass;
  int calls = 0;
  const Function step([&](at::Tensor x) {
    if (++calls == 2) {
      in_second_pass.set_value();
      has_looked.wait();
    }
    return x * w.tensor();
  });
  std::future<void> other;
  at::Tensor seen;
  strategy().run([&] {
    other = std::async(std::launch::async, [&] { coordinator.schedule(step, at::ones({2})); });
    in_second_pass.get_future().wait_for(kMoment);
    seen = w.tensor().detach().clone();
    has_looked.set(true);
  });
  other.get();
  EXPECT_TRUE(coordinator.join(std::chrono::seconds(60)));
  EXPECT_TRUE(seen.eq(1).all().item<bool>()) << seen;
}

TEST_F(CoordinatorTraces, AFunctionListsThePrograms) {
  const Function step([](at::Tensor x, double factor) { return x.mul(factor); });
  ClusterCoordinator coordinator(strategy());
  coordinator.schedule(step, at::ones({2}), 3.0);
  coordinator.schedule(step, at::ones({2}), 4.0);
  coordinator.schedule(step, at::ones({2}), 4.0);
  coordinator.join();
  EXPECT_EQ(step.program(),
            "program 1 of 2:\n%0 = input: float32[2]\n#0 %1 = aten::mul.Scalar(%0, 3): float32[2]\n"
            "return %1\n"
            "program 2 of 2:\n%0 = input: float32[2]\n#0 %1 = aten::mul.Scalar(%0, 4): float32[2]\n"
            "return %1\n");
}

// Regression: the step trained nothing, without a warning.
TEST_F(CoordinatorTraces, AStepThatDropsItsGradientsIsNamedOnce) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  Variable w = strategy().variable("w", at::ones({2}));
  const Function step(
      [&](at::Tensor x) {
        w.tensor().mutable_grad() = at::Tensor();
        w.tensor().mul(x).sum().backward();
      },
      {.name = "forgetful"});
  {
    ClusterCoordinator coordinator(strategy());
    for (std::int64_t size = 1; size <= 2; ++size) coordinator.schedule(step, at::ones({size, 2}));
    coordinator.join();
  }
  set_log_sink(nullptr);
  std::erase_if(
      lines, [](const std::string& line) { return line.find("forgetful") == std::string::npos; });
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         ::testing::AllOf(::testing::HasSubstr("'forgetful' calls backward()"),
                                          ::testing::HasSubstr("minimize(loss)"))));
}

}  // namespace
}  // namespace cohort
