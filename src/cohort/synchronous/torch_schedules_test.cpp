// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules of a TorchOptimizer.
#include "cohort/synchronous/torch_schedules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/strategy/torch_optimizer.h"
#include "cohort/synchronous/whole_batch_fixture.h"
#include "cohort/synchronous/workers/workers_fixture.h"
#include "cohort/testing/throws_error.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using testing::run_workers;
using testing::Tensors;
using testing::text_of;
using testing::throws_error;

// Weights and biases are groups of their own, at rates of 1 and 2.
torch::optim::SGD make_sgd_of_two_groups(Tensors parameters) {
  const auto group = [](const at::Tensor& parameter, double rate) {
    return torch::optim::OptimizerParamGroup({parameter},
                                             std::make_unique<torch::optim::SGDOptions>(rate));
  };
  return torch::optim::SGD({group(parameters[0], 1), group(parameters[1], 2)},
                           torch::optim::SGDOptions(1));
}

class TorchScheduleTest : public ::testing::Test {
 protected:
  TorchScheduleTest() {
    for (const Variable& each : net_.variables()) each.assign(torch::zeros(*each.spec().sizes));
  }
  // Both replicas together: every gradient is 1.
  template <class O>
  void step(const O& optimizer, bool fails = false) {
    two_.run([&] {
      const at::Tensor loss = net_->forward(torch::full({1, 1}, 0.5)).sum();
      optimizer.minimize(net_->weight.sum() * 0.5 + net_->bias.sum() * 0.5 + loss * 0, [&](auto&) {
        if (fails && get_replica_context()->local_replica_id() == 1)
          throw std::runtime_error("stopped");
      });
    });
  }
  double weight() const { return net_.variables()[0].read().item<double>(); }
  double bias() const { return net_.variables()[1].read().item<double>(); }

  MirroredStrategy two_{{"CPU:0", "CPU:1"}};
  Replicated<torch::nn::Linear> net_ = two_.replicate([] { return torch::nn::Linear(1, 1); });
};

const LearningRateSchedule kHalves = [](std::int64_t step) { return step < 1 ? 0.5 : 0.25; };

TEST_F(TorchScheduleTest, SetsTheRateOfEachStepInAllGroupsAndReplicas) {
  TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
  EXPECT_EQ(optimizer.learning_rate(1), 2);
  optimizer.set_learning_rate(kHalves);
  EXPECT_EQ(optimizer.learning_rate(1), 0.5);
  step(optimizer);
  EXPECT_EQ(weight(), -0.5);
  EXPECT_EQ(bias(), -0.5);
  step(optimizer);
  EXPECT_EQ(weight(), -0.75);
  EXPECT_EQ(optimizer.iterations(), 2);
  EXPECT_EQ(optimizer.learning_rate(), 0.25);
}

TEST_F(TorchScheduleTest, OfOneGroupLeavesTheOthers) {
  TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
  optimizer.set_learning_rate(kHalves, 1);
  step(optimizer);
  EXPECT_EQ(weight(), -1);
  EXPECT_EQ(bias(), -0.5);
  optimizer.set_iterations(0);
  EXPECT_EQ(optimizer.learning_rate(1), 0.5);
}

TEST_F(TorchScheduleTest, AStepThatIsNotMadeIsNotCounted) {
  TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
  optimizer.set_learning_rate(kHalves);
  EXPECT_THROW(step(optimizer, /*fails=*/true), std::runtime_error);
  EXPECT_EQ(optimizer.iterations(), 0);
  step(optimizer);
  EXPECT_EQ(weight(), -0.5);
}

// As a checkpoint does.
TEST_F(TorchScheduleTest, TheNumberOfStepsIsSavedWithTheState) {
  const auto state = [this] { return net_.variables()[0].impl()->home()->attached_states().at(0); };
  Bytes saved;
  {
    TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
    for (int i = 0; i < 3; ++i) step(optimizer);
    saved = state()->save();
  }
  TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
  optimizer.set_learning_rate([](std::int64_t number) { return number == 3 ? 8.0 : 0.0; });
  state()->load(saved);
  EXPECT_EQ(optimizer.iterations(), 3);
  const double before = weight();
  step(optimizer);
  EXPECT_EQ(weight(), before - 8);
}

TEST_F(TorchScheduleTest, RefusesRatesAndCallsThatCannotBe) {
  TorchOptimizer optimizer(net_, make_sgd_of_two_groups);
  constexpr ErrorCode kBad = ErrorCode::invalid_argument;
  EXPECT_THAT([&] { optimizer.set_learning_rate(-1); }, throws_error(kBad, "got -1 of step 0"));
  EXPECT_THAT([&] { optimizer.set_learning_rate(1, 2); },
              throws_error(kBad, "a group, below 2, got 2"));
  EXPECT_THAT([&] { optimizer.set_iterations(-1); }, throws_error(kBad, "got -1"));
  EXPECT_THAT([&] { two_.run([&] { optimizer.set_learning_rate(1); }); },
              throws_error(ErrorCode::failed_precondition, "set_learning_rate() outside of run()"));
  optimizer.set_learning_rate([](std::int64_t number) {
    return number == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  });
  step(optimizer);
  EXPECT_THAT([&] { step(optimizer); }, throws_error(kBad, "got nan of step 1 (group 0)"));
  EXPECT_EQ(weight(), -1);
}

// The rates of all workers are compared in each step.
TEST(TorchScheduleOfWorkers, AnotherOneOnOneWorkerIsFound) {
  for (const bool differ : {false, true}) {
    const auto errors = run_workers(2, {}, [&](auto& strategy) {
      const auto net = strategy.replicate([] { return torch::nn::Linear(1, 1); });
      TorchOptimizer optimizer(net, [](Tensors parameters) {
        return torch::optim::SGD(std::move(parameters), torch::optim::SGDOptions(1));
      });
      const double second = differ && strategy.worker() == 1 ? 0.125 : 0.25;
      optimizer.set_learning_rate(
          [second](std::int64_t number) { return number < 1 ? 0.5 : second; });
      for (int i = 0; i < 2; ++i)
        strategy.run([&] { optimizer.minimize(net->forward(torch::ones({1, 1})).sum()); });
    });
    for (const auto& error : errors) {
      EXPECT_THAT(text_of(error), ::testing::HasSubstr(differ ? "lr" : ""));
      EXPECT_EQ(text_of(error).empty(), !differ) << text_of(error);
    }
  }
}

}  // namespace
}  // namespace cohort
