// SPDX-License-Identifier: Apache-2.0
// Checks the statements of docs/guide/frozen.md about scheduled steps, on one worker. Other tests
// check the rest of that page:
//
// - seen: CoordinatorRetraces (captured tensors, flags, default type), CoordinatorTraces (modes),
//   ParameterServerTest.TracesAgainForAShortLastBatch and LateTraces (shapes)
// - refused: TraceRefusal, TraceErrors, TraceUntracedWrites, CoordinatorRetraces.AHostResult…,
//   OptimizersInATrace.HyperparametersAreReadAndSetOutside, TraceRandomState
// - read: CoordinatorRetraces.ANumberForATensorParameter…, ParameterServerTest.ATraceForAnother…,
//   WorkerIndex, UpdatesInSteps
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <memory>

#include "cohort/cohort.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::throws_error;

class Frozen : public ::testing::Test {
 protected:
  // All tests share one cluster, since each coordinator gets a new job on its servers.
  static void SetUpTestSuite() {
    cluster = std::make_unique<testing::TestCluster>(
        testing::TestClusterOptions{.command = {COHORT_COMMAND, "server"}});
  }
  static void TearDownTestSuite() { cluster.reset(); }
  template <class... A>
  double result(const Function& step, A&&... arguments) {
    return coordinator.schedule(step, std::forward<A>(arguments)...)
        .fetch()
        .tensor()
        .template item<double>();
  }
  std::uint64_t traces() const { return coordinator.statistics().traces; }

  static inline std::unique_ptr<testing::TestCluster> cluster;
  ParameterServerStrategy strategy{cluster->resolver()};
  ClusterCoordinator coordinator{strategy};
  const at::Tensor x = torch::full({2}, 8.0);
};

TEST_F(Frozen, ACapturedNumberIsThatOfTheTrace) {
  double smoothing = 0.5;
  int rounds = 2;
  const Function step([&](at::Tensor y) {
    for (int i = 0; i < rounds; ++i) y = y * (1 - smoothing);
    return y.sum();
  });
  EXPECT_EQ(result(step, x), 4);
  smoothing = 0.25;
  rounds = 5;
  EXPECT_EQ(result(step, x), 4);
  EXPECT_EQ(traces(), 1U);
}

TEST_F(Frozen, AnArgumentIsRead) {
  const Function step([](at::Tensor y, at::Tensor smoothing, std::int64_t rounds) {
    for (std::int64_t i = 0; i < rounds; ++i) y = y * (1 - smoothing);
    return y.sum();
  });
  EXPECT_EQ(result(step, x, 0.5, 2), 4);
  EXPECT_EQ(result(step, x, 0.75, 2), 1);
  EXPECT_EQ(traces(), 1U);
  EXPECT_EQ(result(step, x, 0.5, 3), 2);
  EXPECT_EQ(traces(), 2U);
}

TEST_F(Frozen, AHandleIsThatOfTheTraceWhileItsTensorLives) {
  const std::vector<at::Tensor> tables = {torch::ones({2}), torch::zeros({2})};
  at::Tensor table = tables[0];
  const Function step([&](at::Tensor y) { return (y * table).sum(); });
  EXPECT_EQ(result(step, x), 16);
  table = tables[1];
  EXPECT_EQ(result(step, x), 16);
  table = torch::full({2}, 2.0);
  EXPECT_EQ(result(step, x), 16);
}

TEST_F(Frozen, AHandleOfAnotherVariableIsThatOfTheTrace) {
  Variable used = strategy.variable("a", torch::ones({2}));
  const Variable other = strategy.variable("b", torch::zeros({2}));
  const Function step([&](at::Tensor y) { return (y * used.tensor()).sum(); });
  EXPECT_EQ(result(step, x), 16);
  const Variable kept = used;
  used = other;
  EXPECT_EQ(result(step, x), 16);
}

TEST_F(Frozen, AHookThatComesLaterIsNotSeen) {
  const Variable weight = strategy.variable("w", torch::ones({2}));
  const SGD optimizer({weight}, {.learning_rate = 1});
  const Function step([&](at::Tensor y) { optimizer.minimize((y * weight.tensor()).sum()); });
  coordinator.schedule(step, x);
  coordinator.join();
  weight.tensor().register_hook([](at::Tensor gradient) { return gradient * 100; });
  coordinator.schedule(step, x);
  coordinator.join();
  EXPECT_EQ(weight.read()[0].item<double>(), 1 - 8 - 8);
}

TEST_F(Frozen, WhatIsReadThroughAPointerIsThatOfTheExamples) {
  const Function step(
      [](at::Tensor y) { return (y.data_ptr<float>()[0] > 1e30F ? y * 0 : y).sum(); });
  EXPECT_EQ(result(step, x), 16);
  EXPECT_EQ(result(step, torch::full({2}, 2e30)), static_cast<double>(4e30F));
}

TEST_F(Frozen, AFileIsReadWhileTheStepIsTraced) {
  const std::string path = ::testing::TempDir() + "frozen_factor";
  std::ofstream(path) << 2;
  const Function step([&](at::Tensor y) {
    double factor = 0;
    std::ifstream(path) >> factor;
    return (y * factor).sum();
  });
  EXPECT_EQ(result(step, x), 32);
  std::ofstream(path) << 3;
  EXPECT_EQ(result(step, x), 32);
}

TEST_F(Frozen, TheCodeRunsWhileItIsTracedAndAtNoOtherTime) {
  int calls = 0;
  std::vector<at::Tensor> kept;
  const Function step([&](at::Tensor y) {
    ++calls;
    kept.push_back(y.sum());
    return kept.back();
  });
  result(step, x);
  const int calls_of_the_trace = calls;
  EXPECT_GE(calls_of_the_trace, 2);
  result(step, x + 1);
  EXPECT_EQ(calls, calls_of_the_trace);
  EXPECT_EQ(kept.size(), static_cast<std::size_t>(calls));
}

TEST_F(Frozen, RandomNumbersAreNot) {
  const Function step([] { return torch::rand({}, at::kDouble); });
  const double first = result(step);
  EXPECT_NE(result(step), first);
  EXPECT_EQ(traces(), 1U);
}

TEST_F(Frozen, ModesOfAModuleAreThoseThatTheStepSets) {
  auto model = strategy.replicate([] { return torch::nn::Dropout(0.999); });
  const Function evaluate([&](at::Tensor y) {
    model->eval();
    return model->forward(y).sum();
  });
  const Function train([&](at::Tensor y) {
    model->train();
    return model->forward(y).sum();
  });
  EXPECT_EQ(result(evaluate, x), 16);
  EXPECT_NE(result(train, x), 16);
  EXPECT_EQ(result(evaluate, x), 16);
}

TEST_F(Frozen, AShorterBatchIsTracedWithTheNumbersOfThatTime) {
  double factor = 1;
  const Function step([&](Iterator& it) { return it.next<at::Tensor>().sum() * factor; });
  auto iterator = coordinator.create_per_worker_dataset(Dataset::range(3).batch(2)).iterator();
  EXPECT_EQ(result(step, iterator), 0 + 1);
  factor = 10;
  EXPECT_EQ(result(step, iterator), 20);
  EXPECT_EQ(traces(), 2U);
}

TEST_F(Frozen, AMapFunctionHasWhatItCapturedWhenItWasShipped) {
  at::Tensor offset = torch::full({}, 5, at::kLong);
  auto data = coordinator.create_per_worker_dataset(
      Dataset::range(8).map([&](at::Tensor i) { return i + offset; }));
  const Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  auto iterator = data.iterator();
  EXPECT_EQ(result(step, iterator), 5);
  offset.fill_(100);
  EXPECT_EQ(result(step, iterator), 6);
  auto other = data.iterator();
  EXPECT_EQ(result(step, other), 5);
}

TEST_F(Frozen, AMapFunctionDrawsOtherNumbersForEachElement) {
  auto data = coordinator.create_per_worker_dataset(
      Dataset::range(8).map([](at::Tensor i) { return torch::rand({}, at::kDouble) + i * 0; }));
  const Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  auto iterator = data.iterator();
  const double first = result(step, iterator);
  EXPECT_NE(result(step, iterator), first);
}

TEST_F(Frozen, AnOptimizerThatAHandleIsSetToIsNotSeen) {
  const Variable weight = strategy.variable("w", torch::ones({2}));
  SGD optimizer({weight}, {.learning_rate = 1});
  const Function step([&](at::Tensor y) { optimizer.minimize((y * weight.tensor()).sum()); });
  coordinator.schedule(step, x);
  coordinator.join();
  const SGD kept = optimizer;
  optimizer = SGD({weight}, {.learning_rate = 100});
  coordinator.schedule(step, x);
  coordinator.join();
  EXPECT_EQ(weight.read()[0].item<double>(), 1 - 8 - 8);
}

TEST_F(Frozen, WhatReadGaveOutsideOfTheStepIsAConstant) {
  const Variable weight = strategy.variable("w", torch::ones({2}));
  const Variable local = local_variable("local", torch::full({2}, 3.0));
  const SGD optimizer({weight}, {.learning_rate = 1});
  const at::Tensor before = weight.read() * local.read();
  const Function step([&](at::Tensor y) {
    const at::Tensor loss = (y * weight.tensor()).sum() + (before + weight.read()).square().sum();
    optimizer.minimize(loss);
    return loss;
  });
  EXPECT_EQ(result(step, x), 2 * 8 + 2 * 16);
  EXPECT_EQ(weight.read()[0].item<double>(), 1 - 8 - 2 * 4);
  EXPECT_FALSE(local.tensor().grad().defined());
}

TEST_F(Frozen, WritingIsRefused) {
  at::Tensor captured = torch::ones({2});
  const Variable weight = strategy.variable("w", torch::ones({2}));
  const auto refusal = [&](auto body) {
    return [=, this] { coordinator.schedule(Function(body), x); };
  };
  EXPECT_THAT(refusal([](at::Tensor y) { return y.add_(1); }),
              throws_error(ErrorCode::invalid_argument, "clone() it first"));
  EXPECT_THAT(refusal([=](at::Tensor y) { return at::Tensor(captured).add_(y); }),
              throws_error(ErrorCode::invalid_argument, "register parameters and buffers"));
  EXPECT_THAT(refusal([=](at::Tensor y) { return weight.tensor().data().sub_(y); }),
              throws_error(ErrorCode::invalid_argument, "assign/assign_add or an optimizer"));
  EXPECT_EQ(captured[0].item<double>(), 1);
}

}  // namespace
}  // namespace cohort
