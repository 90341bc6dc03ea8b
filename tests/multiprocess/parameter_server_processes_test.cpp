// SPDX-License-Identifier: Apache-2.0
// A coordinator in this process with standard servers in other processes.
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cmath>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/function/inspection.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/error_of.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::error_of;
using testing::TestCluster;
using testing::throws_error;

// Runs with each data backend that servers offer between machines.
class ParameterServerTest : public ::testing::TestWithParam<const char*> {
 protected:
  ParameterServerTest()
      : cluster({.workers = 2,
                 .ps = 2,
                 .command = {COHORT_COMMAND, "server", "--backend", GetParam()}}),
        strategy(cluster.resolver(), {.cluster = {.backend = GetParam()}}),
        coordinator(strategy) {}

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
};

INSTANTIATE_TEST_SUITE_P(Backends, ParameterServerTest, ::testing::Values("stream", "grpc"),
                         [](const auto& one) { return std::string(one.param); });

TEST_P(ParameterServerTest, RunsAClosureThatReadsAVariable) {
  Variable v = strategy.variable("v", at::full({3}, 2.F));
  const Function triple([&] { return v.tensor().mul(3); });
  const Nest result = coordinator.schedule(triple).fetch();
  EXPECT_TRUE(result.tensor().eq(6).all().item<bool>());
}

TEST_P(ParameterServerTest, FetchesTheStructureThatTheFunctionReturns) {
  const Function fn([](at::Tensor x) {
    return Nest::map({{"a", Nest::tuple({x.add(1), x.add(2)})}, {"n", 7}});
  });
  const Nest result = coordinator.fetch(coordinator.schedule(fn, at::zeros({})));
  EXPECT_EQ(result.structure(), "{a: (tensor, tensor), n: int}");
  EXPECT_EQ(result.entries().at("a").items()[1].tensor().item<float>(), 2);
}

// Workers asked parameter servers for their own preferred backend.
TEST(ParameterServerBackends, WorkersTakeWhatAParameterServerOffers) {
  TestCluster cluster({.command = {"/bin/sh", "-c",
                                   R"(case $TF_CONFIG in
                                        *'"type":"ps"'*) exec "$0" server --backend grpc ;;
                                      esac
                                      exec "$0" server --backend stream --backend grpc)",
                                   COHORT_COMMAND}});
  ParameterServerStrategy strategy(cluster.resolver(), {.cluster = {.backend = "grpc"}});
  ClusterCoordinator coordinator(strategy);
  Variable v = strategy.variable("v", at::zeros({4}));
  coordinator.schedule(Function([&] { v.assign_add(at::ones({4})); }));
  coordinator.join();
  EXPECT_TRUE(v.read().eq(1).all().item<bool>()) << v.read();
}

TEST_P(ParameterServerTest, AppliesEveryUpdateOnce) {
  Variable v = strategy.variable("v", at::zeros({4}));
  Function step([&] { v.assign_add(at::ones({4})); });
  for (int i = 0; i < 500; ++i) coordinator.schedule(step);
  coordinator.join();
  EXPECT_TRUE(v.read().eq(500).all().item<bool>()) << v.read();
  EXPECT_TRUE(coordinator.done());
}

TEST_P(ParameterServerTest, InitialValuesAreThoseOfALocalVariable) {
  const TensorSpec spec{at::kFloat, {{50, 20}}};
  const Initializer initializer = Initializer::random_normal(0, 0.1);
  strategy.variable("first", spec, initializer);
  const Variable v = strategy.variable("v", spec, initializer);
  const std::uint64_t seed = ClusterOptions().seed;
  EXPECT_TRUE(v.read().equal(local_variable("v", spec, initializer, seed).read()));
}

TEST_P(ParameterServerTest, PlacesVariablesRoundRobin) {
  for (int i = 0; i < 4; ++i) strategy.variable("v" + std::to_string(i), at::zeros({1}));
  EXPECT_EQ(cluster.health("ps:0").pushes_applied, 2U);
  EXPECT_EQ(cluster.health("ps:1").pushes_applied, 2U);
}

TEST_P(ParameterServerTest, MinimizesALossOnTheWorkers) {
  Variable w = strategy.variable("w", at::full({2}, 4.F));
  SGD optimizer({w}, {.learning_rate = 0.25});
  Function step([&] {
    auto loss = w.tensor().mul(w.tensor()).sum();
    optimizer.minimize(loss);
    return loss;
  });
  EXPECT_EQ(coordinator.schedule(step).fetch().tensor().item<float>(), 32);
  EXPECT_TRUE(w.read().eq(2).all().item<bool>());
  optimizer.set_learning_rate(0.5);
  coordinator.schedule(step);
  coordinator.join();
  EXPECT_TRUE(w.read().eq(0).all().item<bool>()) << "the new rate counts without another trace";
  EXPECT_EQ(coordinator.statistics().traces, 1U);
}

TEST_P(ParameterServerTest, AnotherOptimizerBeginsWithFreshSlots) {
  Variable w = strategy.variable("w", at::zeros({2}));
  const SGD one({w}, {.learning_rate = 1, .momentum = 0.5});
  const SGD other({w}, {.learning_rate = 1, .momentum = 0.5});
  for (const SGD& optimizer : {one, one, other}) {
    Function step([&] { optimizer.minimize(w.tensor().sum()); });
    coordinator.schedule(step);
    coordinator.join();
  }
  EXPECT_EQ(w.read()[0].item<float>(), -1 - 1.5 - 1);
}

// The second trace captured another optimizer's rate, but got the value of the first one's.
TEST_P(ParameterServerTest, ATraceForAnotherShapeReadsTheHyperparametersThatItUses) {
  Variable w = strategy.variable("w", at::zeros({}));
  SGD whole({w}, {.learning_rate = 1}), rest({w}, {.learning_rate = 10});
  auto data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4).repeat());
  auto iterator = data.iterator();
  Function step([&](Iterator& it) {
    const bool is_whole = it.next<at::Tensor>().size(0) == 4;
    (is_whole ? whole : rest).minimize(w.tensor().mul(1));
  });
  const auto run_and_count = [&] {  // the numbers of whole batches and of short ones
    for (int i = 0; i < 20; ++i) coordinator.schedule(step, iterator);
    coordinator.join();
    std::array<double, 2> count{};
    for (const std::uint64_t n : coordinator.statistics().closures) {
      count[0] += static_cast<double>(n - n / 2);
      count[1] += static_cast<double>(n / 2);
    }
    return count;
  };
  const auto first = run_and_count();
  EXPECT_EQ(w.read().item<double>(), -first[0] - 10 * first[1]);
  rest.set_learning_rate(100);
  w.assign(at::zeros({}));
  const auto all = run_and_count();
  EXPECT_EQ(w.read().item<double>(), first[0] - all[0] + 100 * (first[1] - all[1]));
}

// A step that uses another optimizer for short batches had that one's rate at the time of the
// trace, not at the time of schedule().
TEST_P(ParameterServerTest, ATraceForAnotherShapeHasTheHyperparametersOfTheSchedule) {
  Variable w = strategy.variable("w", at::zeros({}));
  SGD whole({w}, {.learning_rate = 1}), rest({w}, {.learning_rate = 10});
  auto data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4).repeat());
  auto iterator = data.iterator();
  Function step([&](Iterator& it) {
    const bool is_whole = it.next<at::Tensor>().size(0) == 4;
    (is_whole ? whole : rest).minimize(w.tensor().mul(1));
  });
  for (int i = 0; i < 20; ++i) coordinator.schedule(step, iterator);
  whole.set_learning_rate(1000);
  rest.set_learning_rate(100);
  coordinator.join();
  double expected = 0;
  for (const std::uint64_t n : coordinator.statistics().closures)
    expected -= static_cast<double>(n - n / 2) + 10 * static_cast<double>(n / 2);
  EXPECT_EQ(w.read().item<double>(), expected);
}

TEST_P(ParameterServerTest, DrawsFromEachWorkersOwnPartOfTheData) {
  Variable sum = strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false});
  auto data = coordinator.create_per_worker_dataset(
      [](const InputContext& input) { return Dataset::range(10).shard(input).repeat().batch(5); });
  auto iterator = data.iterator();
  Function step([&](Iterator& it) { sum.assign_add(it.next<at::Tensor>().sum()); });
  for (int i = 0; i < 20; ++i) coordinator.schedule(step, iterator);
  coordinator.join();
  const auto closures = coordinator.statistics().closures;
  EXPECT_EQ(sum.read().item<std::int64_t>(),
            static_cast<std::int64_t>(closures[0] * 20 + closures[1] * 25));
}

TEST_P(ParameterServerTest, TracesAgainForAShortLastBatch) {
  Variable sum = strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false});
  auto data = coordinator.create_per_worker_dataset(Dataset::range(7).batch(4).repeat());
  auto iterator = data.iterator();
  Function step([&](Iterator& it) {
    auto x = it.next<at::Tensor>();
    sum.assign_add(x.sum());
    return at::full({}, x.size(0), at::kLong);
  });
  std::vector<RemoteValue> sizes;
  for (int i = 0; i < 20; ++i) sizes.push_back(coordinator.schedule(step, iterator));
  coordinator.join();
  std::int64_t elements = 0;
  for (const RemoteValue& size : sizes) elements += size.fetch().tensor().item<std::int64_t>();
  const auto closures = coordinator.statistics().closures;
  const auto batches = [](std::uint64_t n) {
    return static_cast<std::int64_t>(n / 2 * 7 + n % 2 * 4);
  };
  EXPECT_EQ(elements, batches(closures[0]) + batches(closures[1]));
  EXPECT_EQ(coordinator.statistics().traces, 2U);
}

TEST_P(ParameterServerTest, RaisesTheFirstApplicationErrorOnceAndGoesOn) {
  auto data = coordinator.create_per_worker_dataset(Dataset::range(2).batch(1));
  auto iterator = data.iterator();
  Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  const Error error = error_of([&] {
    for (int i = 0; i < 50; ++i) coordinator.schedule(step, iterator);
    coordinator.join();
  });
  EXPECT_EQ(error.code(), ErrorCode::out_of_range) << error.what();
  EXPECT_EQ(error.origin().substr(0, 7), "worker:");
  coordinator.join();
  Function fine([] { return at::ones({}); });
  EXPECT_EQ(coordinator.schedule(fine).fetch().tensor().item<float>(), 1);
}

TEST_P(ParameterServerTest, ABrokenDatasetFailsTheClosureThatUsesIt) {
  // The servers have no data directories, so they open no file for a coordinator.
  const std::string images = COHORT_SOURCE_DIR "/examples/data/digits/t10k-images-idx3-ubyte";
  auto data = coordinator.create_per_worker_dataset(Dataset::idx({.images = images}).batch(2));
  auto iterator = data.iterator();
  Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  Function other([](Iterator&) { return at::ones({}); });
  // Regression: schedule() threw, and a step that drew nothing from the iterator did not fail.
  for (const Function& fn : {step, other}) {
    const RemoteValue value = coordinator.schedule(fn, iterator);
    for (const Error& error :
         {error_of([&] { coordinator.join(); }), error_of([&] { value.fetch(); })}) {
      EXPECT_EQ(error.cause(), ErrorCause::closure_input) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::failed_precondition) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("under this server's data directories"));
    }
    coordinator.join();
  }
}

TEST_P(ParameterServerTest, ABrokenDatasetThatIsNotUsedIsNeverReported) {
  const std::string images = COHORT_SOURCE_DIR "/examples/data/digits/t10k-images-idx3-ubyte";
  auto broken = coordinator.create_per_worker_dataset(Dataset::idx({.images = images}).batch(2));
  auto unused = broken.iterator();
  auto iterator = coordinator.create_per_worker_dataset(Dataset::range(4).repeat()).iterator();
  Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  for (int i = 0; i < 10; ++i) coordinator.schedule(step, iterator);
  coordinator.join();
  EXPECT_TRUE(coordinator.done());
}

TEST_P(ParameterServerTest, IteratorsGoOnAfterAnApplicationError) {
  auto iterator = coordinator.create_per_worker_dataset(Dataset::range(1000)).iterator();
  auto short_one = coordinator.create_per_worker_dataset(Dataset::range(2)).iterator();
  Function step([](Iterator& it) { return it.next<at::Tensor>(); });
  for (int i = 0; i < 4; ++i) coordinator.schedule(step, iterator);
  coordinator.join();
  const auto before = coordinator.statistics().closures;
  const Error error = error_of([&] {
    for (int i = 0; i < 20; ++i) coordinator.schedule(step, short_one);
    coordinator.join();
  });
  EXPECT_EQ(error.code(), ErrorCode::out_of_range) << error.what();
  const Nest next = coordinator.schedule(step, iterator).fetch();
  const auto drawn = static_cast<std::uint64_t>(next.tensor().item<std::int64_t>());
  EXPECT_TRUE(drawn == before[0] || drawn == before[1]) << drawn << " was to follow on one of them";
}

// The job waited until the data timeout.
TEST_P(ParameterServerTest, AResultThatCannotTravelIsAnError) {
  Function sparse([](at::Tensor x) { return x.to_sparse(); }, {.name = "sparse"});
  Function undefined([](at::Tensor x) { return Nest::tuple({x, at::Tensor()}); });
  EXPECT_EQ(error_of([&] { coordinator.schedule(sparse, at::ones({2})).fetch(); }).code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { coordinator.schedule(undefined, at::ones({2})).fetch(); }).code(),
            ErrorCode::invalid_argument);
  Function fine([](at::Tensor x) { return x; });
  EXPECT_EQ(coordinator.schedule(fine, at::ones({})).fetch().tensor().item<float>(), 1);
}

TEST_P(ParameterServerTest, RefusesARemoteValueAsArgument) {
  Function make([] { return at::ones({}); });
  Function take([](at::Tensor x) { return x; });
  const RemoteValue value = coordinator.schedule(make);
  EXPECT_EQ(error_of([&] { coordinator.schedule(take, value); }).code(),
            ErrorCode::invalid_argument);
}

TEST_P(ParameterServerTest, ASecondCoordinatorIsTheSame) {
  ClusterCoordinator again(strategy);
  Function fn([] { return at::ones({}); });
  again.schedule(fn);
  coordinator.join();
  EXPECT_EQ(coordinator.statistics().closures[0] + coordinator.statistics().closures[1], 1U);
}

// The closure ids of the second coordinator began at 1 again, so its updates were dropped as
// repeats.
TEST(CoordinatorsInTurn, TheUpdatesOfEachCount) {
  TestCluster cluster({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  Variable sum = strategy.variable("sum", at::zeros({}));
  for (int i = 0; i < 3; ++i) {
    ClusterCoordinator coordinator(strategy);
    Function step([&] { sum.assign_add(at::ones({})); });
    for (int k = 0; k < 10; ++k) coordinator.schedule(step);
    EXPECT_TRUE(coordinator.join(std::chrono::seconds(60))) << i;
  }
  EXPECT_EQ(sum.read().item<float>(), 30);
}

TEST_P(ParameterServerTest, AStepPrintsToTheLogOfItsWorker) {
  Variable v = strategy.variable("v", at::full({2}, 3.F));
  const Function step(
      [&] {
        print(v.tensor().mul(2), "twice");
        v.assign_add(at::ones({2}));
      },
      {.name = "shown"});
  coordinator.schedule(step);
  coordinator.join();
  const std::string log = cluster.output("worker:0") + cluster.output("worker:1");
  EXPECT_THAT(log, ::testing::ContainsRegex("worker:[01]: closure [0-9]+ of 'shown': twice = "
                                            "float32\\[2\\] \\{6, 6\\}"));
  EXPECT_EQ(cluster.health("ps:0").pushes_applied, 2U) << "the variable's value, and one update";
}

TEST_P(ParameterServerTest, AStepWhoseValueIsNotFiniteEndsWithItsLabel) {
  Variable v = strategy.variable("v", at::full({2}, 0.F));
  const Function step(
      [&] {
        const at::Tensor log = v.tensor().log();
        v.assign_add(at::ones({2}));
        check_finite(log, "log of v");
      },
      {.name = "checked"});
  const Error error = error_of([&] { coordinator.schedule(step).fetch(); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error.cause(), ErrorCause::application);
  EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("'log of v', got 2 of 2"),
                                             ::testing::HasSubstr("running 'checked'")));
  EXPECT_TRUE(v.read().eq(0).all().item<bool>()) << "its update was not sent";
}

TEST_P(ParameterServerTest, AStepWaitsForAVariable) {
  const Variable open = strategy.variable("open", at::zeros({}));
  const Variable n = strategy.variable("n", at::zeros({}));
  const Function step([&] {
    n.assign_add(1);
    open.wait_until_positive();
    n.assign_add(10);
    return open.tensor().mul(1);
  });
  const RemoteValue value = coordinator.schedule(step);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (n.read().item<float>() == 0 && !deadline.has_expired()) {
  }
  EXPECT_EQ(n.read().item<float>(), 1) << "its updates before the wait are made, the others not";
  EXPECT_FALSE(value.is_ready());
  open.assign(3);
  EXPECT_EQ(value.fetch().tensor().item<float>(), 3);
  EXPECT_EQ(n.read().item<float>(), 11);
}

TEST_P(ParameterServerTest, OnlyAScheduledStepCanWaitForAVariableOfOneNumber) {
  const Variable one = strategy.variable("one", at::ones({}));
  const Variable two = strategy.variable("two", at::ones({2}));
  EXPECT_EQ(error_of([&] { one.wait_until_positive(); }).code(), ErrorCode::failed_precondition);
  EXPECT_EQ(error_of([&] { two.wait_until_positive(); }).code(), ErrorCode::invalid_argument);
}

// Cancel-all waited until the step ended by itself.
TEST_P(ParameterServerTest, AStepThatRunsIsCancelledAfterTheErrorOfAnother) {
  const Variable open = strategy.variable("open", at::zeros({}));
  const Variable n = strategy.variable("n", at::zeros({}));
  const Function waiting([&] {
    n.assign_add(1);
    open.wait_until_positive();
  });
  const Function bad([](at::Tensor x) { check_finite(x, "x"); });
  const RemoteValue value = coordinator.schedule(waiting);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (n.read().item<float>() == 0 && !deadline.has_expired()) {
  }
  coordinator.schedule(bad, at::full({}, INFINITY));  // on the other worker
  EXPECT_EQ(error_of([&] { coordinator.join(); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(error_of([&] { value.fetch(); }).code(), ErrorCode::cancelled);
  open.assign(1);
  coordinator.schedule(waiting);
  coordinator.join();
  EXPECT_EQ(n.read().item<float>(), 2);
}

// The message named the operator, but neither the function nor the shapes.
TEST_P(ParameterServerTest, AnOperatorThatFailsOnAWorkerNamesItsFunctionAndInputs) {
  const Function step([](at::Tensor x, at::Tensor i) { return x.index_select(0, i); },
                      {.name = "chosen"});
  coordinator.schedule(step, at::ones({3, 2}), at::ones({2}, at::kLong)).fetch();
  const Error error = error_of([&] {
    coordinator.schedule(step, at::ones({3, 2}), at::ones({2}, at::kLong).mul(-5)).fetch();
  });
  EXPECT_THAT(error.what(),
              ::testing::AllOf(::testing::HasSubstr("aten::index_select failed"),
                               ::testing::HasSubstr("(with self float32[3, 2], index int64[2])"),
                               ::testing::HasSubstr("running 'chosen'")));
}

}  // namespace
}  // namespace cohort
