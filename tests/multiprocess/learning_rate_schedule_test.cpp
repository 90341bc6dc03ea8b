// SPDX-License-Identifier: Apache-2.0
// Compares AdamW with a learning rate schedule on real servers, with many closures in flight, to
// the same steps in this process.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"

namespace cohort {
namespace {

using testing::TestCluster;

constexpr int kSteps = 40;

at::Tensor batch(int step) {
  return at::randn({4, 3}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(step)),
                   at::TensorOptions(at::kFloat));
}

AdamWOptions options() {
  const CosineDecay decay({.initial_learning_rate = 0.1, .decay_steps = 60, .alpha = 0.1});
  return {.learning_rate = LinearWarmup({.warmup_steps = 10, .after_warmup = decay}),
          .weight_decay = 0.05};
}

// Two updates per step, each with its own learning rate.
struct Model {
  explicit Model(Variable variable) : w(std::move(variable)) {}
  void run(const at::Tensor& x) const {
    for (int i = 0; i < 2; ++i) optimizer.minimize(x.mul(w.tensor()).sum(1).tanh().mean());
  }
  Variable w;
  AdamW optimizer{{w}, options()};
};

class LearningRateSchedules : public ::testing::TestWithParam<bool> {
 protected:
  const at::Tensor start = at::linspace(-1.0, 1.5, 3);
  TestCluster cluster{{.workers = 1, .ps = 2, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = GetParam()}};
};

TEST_P(LearningRateSchedules, GiveEveryStepTheRateThatItHasHere) {
  const Model here(local_variable("w", start.clone()));
  Model there(strategy.variable("w", start));
  const Function step([&](at::Tensor x) { there.run(x); }, {.name = "train"});
  for (int i = 0; i < kSteps; ++i) {
    here.run(batch(i));
    coordinator.schedule(step, batch(i));
  }
  coordinator.join();
  EXPECT_TRUE(at::equal(there.w.read(), here.w.read()));
  EXPECT_EQ(there.optimizer.iterations(), 2 * kSteps);
  EXPECT_EQ(there.optimizer.learning_rate(), here.optimizer.learning_rate());
  EXPECT_EQ(coordinator.statistics().traces, GetParam() ? 0U : 1U);
}

// The rule of each variable travels with the numbers of its group, and the schedule counts once.
TEST_P(LearningRateSchedules, ReachTheGroupsOfAnOptimizer) {
  AdamWOptions grouped = options();
  grouped.groups = {{.pattern = "b", .learning_rate_factor = 0.5, .weight_decay = 0},
                    {.pattern = "c", .learning_rate = 0.01}};
  const auto make = [&](const auto& variable) {
    return AdamW({variable("w"), variable("b"), variable("c")}, grouped);
  };
  const AdamW here = make([&](std::string name) { return local_variable(name, start.clone()); });
  const AdamW there = make([&](std::string name) { return strategy.variable(name, start); });
  const auto run = [](const AdamW& optimizer, const at::Tensor& x) {
    at::Tensor sum = x;
    for (const Variable& each : optimizer.variables()) sum = sum.mul(each.tensor()).add(1);
    optimizer.minimize(sum.tanh().mean());
  };
  const Function step([&](at::Tensor x) { run(there, x); }, {.name = "train"});
  for (int i = 0; i < kSteps; ++i) {
    run(here, batch(i));
    coordinator.schedule(step, batch(i));
  }
  coordinator.join();
  for (std::size_t i = 0; i < here.variables().size(); ++i) {
    EXPECT_TRUE(at::equal(there.variables()[i].read(), here.variables()[i].read()))
        << there.variables()[i].name();
  }
  EXPECT_EQ(there.iterations(), kSteps);
}

// All steps of an epoch had the learning rate of the first one.
TEST_P(LearningRateSchedules, FollowTheStepsOfEpochs) {
  const Model here(local_variable("w", start.clone()));
  Model there(strategy.variable("w", start));
  const auto rows = [](const at::Tensor& i) { return (i + 1).to(at::kFloat).reshape({-1, 1}) / 7; };
  const auto data = [&](bool is_known) {
    const Dataset batches = Dataset::range(23).batch(3).map(rows);
    return is_known ? batches : batches.filter([](const at::Tensor& x) { return x.sum() > 0; });
  };
  const Function step([&](Iterator& it) { there.run(it.next<at::Tensor>()); }, {.name = "train"});
  for (const bool is_known : {true, false, true}) {
    for (const Nest& batch_of_rows : data(is_known)) here.run(batch_of_rows.tensor());
    const auto sharded = coordinator.create_per_worker_dataset(data(is_known));
    EXPECT_EQ(coordinator.run_epoch(step, sharded).steps, 8U);
    EXPECT_TRUE(at::equal(there.w.read(), here.w.read())) << is_known;
    EXPECT_EQ(there.optimizer.iterations(), here.optimizer.iterations()) << is_known;
  }
  EXPECT_EQ(there.optimizer.iterations(), 2 * 3 * 8);
}

class LearningRatesOfTwoWorkers : public ::testing::TestWithParam<bool> {
 protected:
  static double value_of(const Variable& variable) { return variable.read().item<double>(); }
  PerWorkerDataset data(bool is_known) {
    Dataset batches = Dataset::range(60).batch(2);
    if (!is_known) batches = batches.filter([](const at::Tensor& x) { return x.sum() >= 0; });
    return coordinator.create_per_worker_dataset(batches);
  }
  TestCluster cluster{{.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}}};
  ParameterServerStrategy strategy{cluster.resolver()};
  ClusterCoordinator coordinator{strategy, {.run_eagerly = GetParam()}};
};

// Steps that were scheduled ahead and never ran stayed counted: how many depended on timing.
TEST_P(LearningRatesOfTwoWorkers, AreThoseOfThePlainProgramWhateverIsDropped) {
  const at::Tensor zero = at::zeros({}, at::TensorOptions(at::kDouble));
  const Variable rates = strategy.variable("rates", zero), steps = strategy.variable("steps", zero);
  const SGD rated({rates},
                  {.learning_rate = [](std::int64_t i) { return 1.0 + static_cast<double>(i); }});
  const SGD counting({steps}, {.learning_rate = 1.0});
  const auto update = [&] {
    rated.minimize(rates.tensor() * -1);
    counting.minimize(steps.tensor() * -1);
  };
  const Function draw([&](Iterator& it) {
    it.next<at::Tensor>();
    update();
  });
  const Function plain([&] { update(); });
  for (const bool is_known : {true, false, true}) {
    {
      Epoch dropped = coordinator.begin_epoch(draw, data(is_known));
      for (int i = 0; i < 3; ++i) EXPECT_TRUE(dropped.try_next());
      coordinator.schedule(plain);
    }
    for (int i = 0; i < 3; ++i) coordinator.schedule(plain);
    coordinator.join();  // now all that was dropped has given its numbers back
    EXPECT_EQ(coordinator.run_epoch(draw, data(is_known)).steps, 60U);
    coordinator.join();
    EXPECT_EQ(rated.iterations(), value_of(steps)) << is_known;
  }
  // The last epoch has taken what the one of unknown length has left.
  const double count = value_of(steps);
  EXPECT_GE(count, 3 * 67);
  EXPECT_EQ(value_of(rates), count * (count + 1) / 2);
}

// Steps sent beyond the end of a worker's data held up to a hundred numbers while the other worker
// went on.
TEST_P(LearningRatesOfTwoWorkers, AreNotFarBehindWhereTheEndOfTheDataIsUnknown) {
  const Variable latest =
      strategy.variable("latest", at::zeros({}, at::TensorOptions(at::kDouble)));
  const SGD rated({latest}, {.learning_rate = [](std::int64_t i) { return 1.0 + double(i); }});
  const Function draw([&](Iterator& it) {
    it.next<at::Tensor>();
    rated.minimize(latest.tensor() * -1);
  });
  std::uint64_t steps = 0;
  for (int epoch = 0; epoch < 3; ++epoch) steps += coordinator.run_epoch(draw, data(false)).steps;
  const auto count = static_cast<double>(steps);
  EXPECT_EQ(rated.iterations(), static_cast<std::int64_t>(steps));
  EXPECT_LE(value_of(latest), count * (count + 1) / 2 + 2 * 2 * count);
}

INSTANTIATE_TEST_SUITE_P(Steps, LearningRatesOfTwoWorkers, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "Eager" : "Traced"; });

INSTANTIATE_TEST_SUITE_P(Steps, LearningRateSchedules, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "Eager" : "Traced"; });

}  // namespace
}  // namespace cohort
