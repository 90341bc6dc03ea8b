// SPDX-License-Identifier: Apache-2.0
// CoordinatorOptions::run_eagerly: steps run in the coordinator's process, variables are on a
// parameter server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/data/iterator.h"
#include "cohort/function/inspection.h"
#include "cohort/function/registry.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::TestCluster;
using testing::throws_error;

using Tensors = std::vector<at::Tensor>;

torch::nn::Sequential model() {
  using namespace torch::nn;
  return Sequential(Linear(6, 8), BatchNorm1d(8), ReLU(), Dropout(0.5), Linear(8, 3));
}

// Trains some steps on a new cluster; returns the losses, then the variables.
Tensors trained(bool run_eagerly) {
  TestCluster cluster({.command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.run_eagerly = run_eagerly});
  const auto net = strategy.replicate(model);
  const Variable seen = strategy.variable("seen", at::zeros({6}), {.is_trainable = false});
  Adam optimizer(net.parameters(), {.learning_rate = 0.05});
  const Dataset data = Dataset::range(40)
                           .map([](at::Tensor i) { return i.mul(i).remainder(7).to(at::kFloat); })
                           .batch(6, {.drop_remainder = true})
                           .shuffle(10)
                           .batch(4, {.drop_remainder = true})
                           .repeat();
  auto iterator = coordinator.create_per_worker_dataset(data).iterator();
  const Function step([&](Iterator& it, at::Tensor scale) {
    net->train();
    const at::Tensor x = it.next<at::Tensor>();
    const at::Tensor y = net->forward(x.mul(scale).add(current_worker_index()));
    const at::Tensor loss = y.add(at::rand_like(y)).square().mean();
    optimizer.minimize(loss);
    Variable(seen).assign_add(x.sum(0));
    return loss;
  });
  Tensors results;
  for (int i = 0; i < 6; ++i) {
    optimizer.set_learning_rate(0.05 / (i + 1));
    results.push_back(coordinator.schedule(step, iterator, at::full({}, 0.5 + i)).fetch().tensor());
  }
  coordinator.join();
  EXPECT_EQ(coordinator.statistics().closures.at(0), 6U);
  EXPECT_EQ(coordinator.statistics().traces, run_eagerly ? 0U : 1U);
  for (const Variable& variable : net.variables()) results.push_back(variable.read());
  results.push_back(seen.read());
  return results;
}

TEST(RunEagerlyTest, EqualsOneWorkerBitForBit) {
  torch::set_num_threads(1);  // as on a worker: LibTorch 2's order of additions depends on it
  const Tensors here = trained(true), there = trained(false);
  ASSERT_EQ(here.size(), there.size());
  for (std::size_t i = 0; i < here.size(); ++i)
    EXPECT_TRUE(here[i].equal(there[i])) << i << ":\n" << here[i] << "\n" << there[i];
}

// Regression: a trace took the gradient of b from the new value of a.
TEST(RunEagerlyTest, AGradientThatIsAnotherVariablesValueIsReadBeforeAllUpdates) {
  for (const bool run_eagerly : {false, true}) {
    TestCluster cluster{{.command = {COHORT_COMMAND, "server"}}};
    ParameterServerStrategy strategy(cluster.resolver());
    ClusterCoordinator coordinator(strategy, {.run_eagerly = run_eagerly});
    const Variable a = strategy.variable("a", at::full({2}, 1.F));
    const Variable b = strategy.variable("b", at::full({2}, 10.F));
    const SGD optimizer({a, b}, {.learning_rate = 0.5});
    coordinator
        .schedule(Function([&] {
          const at::Tensor value = a.tensor().detach();
          optimizer.apply_gradients({{value, a}, {value, b}});
        }))
        .fetch();
    EXPECT_TRUE(a.read().eq(0.5).all().item<bool>()) << a.read();
    EXPECT_TRUE(b.read().eq(9.5).all().item<bool>()) << b.read();
  }
}

class RunEagerly : public ::testing::Test {
 protected:
  TestCluster cluster{{.command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = true}};
  Variable w = strategy.variable("w", at::full({2}, 4.F));
};

TEST_F(RunEagerly, AStepMayLookAtValuesOnTheHost) {
  float seen = 0;
  const Function step([&] {
    const at::Tensor loss = w.tensor().square().sum();
    seen = loss.item<float>();
    return seen > 1 ? loss : -loss;
  });
  EXPECT_EQ(coordinator.schedule(step).fetch().tensor().item<float>(), 32);
  EXPECT_EQ(seen, 32);
  EXPECT_EQ(cluster.health("worker:0").closures_run, 0U);
}

TEST_F(RunEagerly, ReadsAfterAnUpdateSeeIt) {
  const SGD optimizer({w}, {.learning_rate = 0.25});
  const Function step([&] {
    optimizer.minimize(w.tensor().square().sum());  // 4 - 0.25 * 8
    optimizer.minimize(w.tensor().square().sum());
    w.assign_add(at::ones({2}));
    return w.tensor().detach().clone();
  });
  EXPECT_TRUE(coordinator.schedule(step).fetch().tensor().eq(2).all().item<bool>());
  EXPECT_TRUE(w.read().eq(2).all().item<bool>());
}

// Regression: a term of a loss that had read() in place of tensor() was not trained, without a
// word.
TEST_F(RunEagerly, PenaltiesOfValuesThatWereReadAreTrained) {
  const SGD optimizer({w}, {.learning_rate = 0.25});
  const Function step([&](at::Tensor x) {
    optimizer.minimize(w.tensor().mul(x).sum() + w.read().square().sum());  // 4 - 0.25 * (2 + 8)
    w.assign(w.read() + 1);
    optimizer.minimize(w.read().mul_(2).sum());  // 2.5 - 0.25 * 2
    return w.read();
  });
  const at::Tensor result = coordinator.schedule(step, at::full({2}, 2.F)).fetch().tensor();
  EXPECT_TRUE(result.eq(2).all().item<bool>()) << result;
  EXPECT_FALSE(result.requires_grad());
  EXPECT_TRUE(w.read().eq(2).all().item<bool>());
}

// As a trace refuses it: the second step's gradients would flow through the first one too.
TEST_F(RunEagerly, ABufferWrittenInPlaceWithAGraphIsRefused) {
  const Variable mean = strategy.variable("mean", at::zeros({2}), {.is_trainable = false});
  const Function bad([&] { mean.tensor().mul_(0.5).add_(w.read()); });
  EXPECT_THAT([&] { coordinator.schedule(bad).fetch(); },
              throws_error(ErrorCode::invalid_argument,
                           "variable 'mean' was written in place with a value that requires a "
                           "gradient"));
  EXPECT_THROW(coordinator.join(), Error);
  const Function good([&] {
    EXPECT_TRUE(mean.tensor().is_leaf());
    mean.tensor().mul_(0.5).add_(w.read().detach());
  });
  coordinator.schedule(good);
  coordinator.join();
  EXPECT_TRUE(mean.read().eq(4).all().item<bool>()) << mean.read();
}

// They were 0, also in `cohort status`.
TEST_F(RunEagerly, TheBytesOfVariablesAreCounted) {
  const Function step([&] { w.assign_add(at::ones({2})); });
  coordinator.schedule(step);
  coordinator.join();
  const CoordinatorStatistics one = coordinator.statistics();
  EXPECT_EQ(one.pulled_bytes, 2U * 8) << "before the step, and after the update";
  EXPECT_EQ(one.pushed_bytes, 8U);
  const Function draw([&](Iterator& it) { w.assign_add(it.next<at::Tensor>()); });
  const Dataset data =
      Dataset::range(3).map([](at::Tensor i) { return i.to(at::kFloat).expand(2); });
  coordinator.run_epoch(draw, data);
  EXPECT_EQ(coordinator.statistics().pulled_bytes, 4U * 16);
  EXPECT_EQ(coordinator.statistics().pushed_bytes, 4U * 8);
}

TEST_F(RunEagerly, ABufferWrittenInPlaceIsAssigned) {
  Variable steps = strategy.variable("steps", at::zeros({}, at::kLong), {.is_trainable = false});
  const Function step([&] {
    at::Tensor buffer = steps.tensor();
    buffer.add_(2);
    steps.assign_add(at::ones({}, at::kLong));
    buffer.mul_(10);
  });
  for (int i = 0; i < 2; ++i) coordinator.schedule(step);
  coordinator.join();
  EXPECT_EQ(steps.read().item<std::int64_t>(), ((0 + 2 + 1) * 10 + 2 + 1) * 10);
}

TEST_F(RunEagerly, ATrainableVariableWrittenInPlaceIsRefused) {
  const Function step([&] { w.tensor().data().mul_(2); });
  EXPECT_THAT([&] { coordinator.schedule(step).fetch(); },
              throws_error(ErrorCode::invalid_argument, "writes in place into its copy"));
  EXPECT_TRUE(w.read().eq(4).all().item<bool>());
}

// Errors are reported as those of closures that run on a worker.
TEST_F(RunEagerly, AnErrorIsTheResultsAndTheNextCallers) {
  const Function bad([&] { return w.tensor().mm(w.tensor()); }, {.name = "bad"});
  const Function good([] { return at::ones({}); });
  const RemoteValue result = coordinator.schedule(bad);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { result.fetch(); },
                throws_error(ErrorCode::invalid_argument, "self must be a matrix"));
    EXPECT_THAT([&] { result.fetch(); },
                ::testing::Throws<Error>(::testing::Property(
                    &Error::what, ::testing::HasSubstr("while running 'bad' eagerly"))));
  }
  EXPECT_THAT([&] { coordinator.schedule(good); },
              throws_error(ErrorCode::invalid_argument, "self must be a matrix"));
  coordinator.schedule(good);
  coordinator.join();
  coordinator.schedule(bad);
  EXPECT_THAT([&] { coordinator.join(); },
              throws_error(ErrorCode::invalid_argument, "self must be a matrix"));
  EXPECT_TRUE(coordinator.done());
}

TEST_F(RunEagerly, TheEndOfTheDataIsAnError) {
  auto iterator = coordinator.create_per_worker_dataset(Dataset::range(1)).iterator();
  const Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  EXPECT_EQ(coordinator.schedule(step, iterator).fetch().tensor().item<std::int64_t>(), 0);
  EXPECT_THAT([&] { coordinator.schedule(step, iterator).fetch(); },
              throws_error(ErrorCode::out_of_range, ""));
}

TEST_F(RunEagerly, WhatAStepMustNotDoIsRefusedAsInATrace) {
  const auto refused = [&](const std::function<void()>& body, const std::string& words) {
    const Function step([&] { body(); });
    EXPECT_THAT([&] { coordinator.schedule(step).fetch(); },
                throws_error(ErrorCode::failed_precondition, words));
    EXPECT_THAT([&] { coordinator.join(); }, throws_error(ErrorCode::failed_precondition, words));
  };
  refused([&] { coordinator.join(); }, "outside of scheduled functions");
  refused([&] { strategy.variable("late", at::ones({1})); }, "outside of scheduled functions");
  refused([&] { SGD({w}, {.learning_rate = 1}); }, "made before the step");
}

TEST_F(RunEagerly, ArgumentsAreTheStepsOwn) {
  const at::Tensor x = at::ones({2});
  const Function step([](at::Tensor y) { return y.mul_(3); });
  EXPECT_TRUE(coordinator.schedule(step, x).fetch().tensor().eq(3).all().item<bool>());
  EXPECT_TRUE(x.eq(1).all().item<bool>());
}

TEST_F(RunEagerly, RegisteredFunctionsRunWhereTheyAreKnown) {
  function::register_function("twice", [](Tensors inputs) { return Tensors{inputs[0].mul(2)}; });
  const Function twice = Function::registered("twice"), unknown = Function::registered("thrice");
  EXPECT_EQ(coordinator.schedule(twice, at::ones({})).fetch().tensor().item<float>(), 2);
  EXPECT_THAT([&] { coordinator.schedule(unknown, at::ones({})).fetch(); },
              throws_error(ErrorCode::failed_precondition, "'thrice' to be registered"));
}

}  // namespace
}  // namespace cohort
