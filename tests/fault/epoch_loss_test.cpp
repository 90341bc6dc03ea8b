// SPDX-License-Identifier: Apache-2.0
// Workers that die in the middle of an epoch: no element is lost, and none counts twice.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <utility>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

class EpochLossTest : public ::testing::Test {
 protected:
  explicit EpochLossTest(CoordinatorOptions options = {})
      : cluster({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver()),
        coordinator(strategy, options),
        steps(strategy.variable("steps", at::zeros({}, at::kLong), {.is_trainable = false})),
        sum(strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false})),
        count([this](Iterator& it) {  // an update on each parameter server
          const at::Tensor x = it.next<at::Tensor>();
          if (on_trace) on_trace(x.numel());
          steps.assign_add(at::ones({}, at::kLong));
          sum.assign_add(x.sum());
          return x;
        }) {}

  PerWorkerDataset shuffled(std::int64_t size, std::int64_t batch = 1) {
    return coordinator.create_per_worker_dataset([=](const InputContext& input) {
      return Dataset::range(size).shard(input).shuffle(50).batch(batch);
    });
  }
  void note(const EpochStep& step) {
    const at::Tensor ids = step.result.tensor();
    for (std::int64_t i = 0; i < ids.numel(); ++i)
      EXPECT_TRUE(seen.insert(ids.view({-1})[i].item<std::int64_t>()).second) << "came twice";
  }
  // All below n, and each once.
  void expect_all_once(std::int64_t n, std::int64_t number_of_steps) {
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), n);
    EXPECT_EQ(steps.read().item<std::int64_t>(), number_of_steps);
    EXPECT_EQ(sum.read().item<std::int64_t>(), n * (n - 1) / 2);
  }

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable steps, sum;
  std::function<void(std::int64_t rows)> on_trace;
  Function count;
  std::set<std::int64_t> seen;
};

TEST_F(EpochLossTest, AKilledWorkerThatReturnsGoesOnWhereItWas) {
  int number = 0;
  const auto on_step = [&](const EpochStep& step) {
    note(step);
    if (++number == 150) cluster.kill("worker:1");
    if (number == 250) cluster.restart("worker:1");
  };
  const EpochResult result = coordinator.run_epoch(count, shuffled(2000), {.on_step = on_step});
  EXPECT_EQ(result.steps, 2000U);
  EXPECT_EQ(result.steps_per_worker[1], 1000U);
  EXPECT_GT(coordinator.statistics().retries, 0U) << "the kill met no step";
  expect_all_once(2000, 2000);
}

TEST_F(EpochLossTest, BothWorkersMayDieSeveralTimes) {
  int number = 0;
  const auto on_step = [&](const EpochStep& step) {
    note(step);
    if (++number % 100 != 0 || number > 400) return;
    for (const char* task : {"worker:0", "worker:1"}) cluster.kill(task);
    for (const char* task : {"worker:1", "worker:0"}) cluster.restart(task);
  };
  coordinator.run_epoch(count, shuffled(1200), {.on_step = on_step});
  EXPECT_GT(coordinator.statistics().retries, 0U) << "the kills met no step";
  expect_all_once(1200, 1200);
}

// The worker dies while the coordinator traces for the short batch that it has drawn.
TEST_F(EpochLossTest, AShortLastBatchOfALostWorkerComesOnce) {
  bool was_killed = false;
  on_trace = [&](std::int64_t rows) {
    if (rows != 1 || std::exchange(was_killed, true)) return;
    cluster.kill("worker:0");
    cluster.restart("worker:0");
  };
  const auto on_step = [&](const EpochStep& step) { note(step); };
  coordinator.run_epoch(count, shuffled(1001, 10), {.on_step = on_step});  // 501 and 500 elements
  EXPECT_TRUE(was_killed);
  EXPECT_GT(coordinator.statistics().retries, 0U) << "the kill met no step";
  expect_all_once(1001, 51 + 50);
}

class ShortTimeoutTest : public EpochLossTest {
 protected:
  ShortTimeoutTest()
      : EpochLossTest({.progress_timeout = std::chrono::seconds(3),
                       .heartbeat = std::chrono::milliseconds(500)}) {}
  void go_on(Epoch& epoch) {
    while (const std::optional<EpochStep> step = epoch.try_next()) note(*step);
  }
  // A worker may take longer than the timeout to return.
  void go_on_when_it_is_back(Epoch& epoch) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (true) {
      try {
        return go_on(epoch);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::deadline_exceeded || deadline.has_expired()) throw;
      }
    }
  }
};

TEST_F(ShortTimeoutTest, AWorkerThatNeverReturnsIsNamed) {
  const PerWorkerDataset data = shuffled(1000);
  Epoch epoch = coordinator.begin_epoch(count, data);
  for (int i = 0; i < 50; ++i) note(*epoch.try_next());
  cluster.kill("worker:1");
  EXPECT_THAT([&] { go_on(epoch); },
              throws_error(ErrorCode::deadline_exceeded, "waiting for worker:1 (away"));
  cluster.restart("worker:1");
  go_on_when_it_is_back(epoch);
  expect_all_once(1000, 1000);
}

// Its process lives on, with an iterator that is further.
TEST_F(ShortTimeoutTest, AWorkerThatWasSilentGoesOnWhereItWas) {
  Epoch epoch = coordinator.begin_epoch(count, shuffled(1000));
  for (int i = 0; i < 50; ++i) note(*epoch.try_next());
  cluster.stop("worker:1");
  EXPECT_THAT([&] { go_on(epoch); },
              throws_error(ErrorCode::deadline_exceeded, "waiting for worker:1 (away"));
  cluster.resume("worker:1");
  go_on_when_it_is_back(epoch);
  expect_all_once(1000, 1000);
}

TEST_F(ShortTimeoutTest, WhatIsGivenUpDoesNotHoldUpTheNext) {
  {
    Epoch epoch = coordinator.begin_epoch(count, shuffled(1000));
    for (int i = 0; i < 20; ++i) epoch.try_next();
    cluster.kill("worker:1");
    while (coordinator.statistics().closures[0] < 500) epoch.try_next();
  }
  coordinator.join();
  EXPECT_TRUE(coordinator.done()) << "nothing waits for the lost worker";
}

TEST_F(EpochLossTest, AnOrderThatMayChangeIsRefusedOnlyWhenAWorkerIsLost) {
  const Function ready([](at::Tensor x) { return x; });
  const PerWorkerDataset data =
      coordinator.create_per_worker_dataset([&](const InputContext& input) {
        return Dataset::range(2000).shard(input).map(
            ready, {.num_parallel_calls = 2, .deterministic = false});
      });
  coordinator.run_epoch(count, data, {.on_step = [&](const EpochStep& step) { note(step); }});
  expect_all_once(2000, 2000);
  int number = 0;
  const auto kill_one = [&](const EpochStep&) {
    if (++number == 100) cluster.kill("worker:1");
    if (number == 110) cluster.restart("worker:1");
  };
  EXPECT_THAT([&] { coordinator.run_epoch(count, data, {.on_step = kill_one}); },
              throws_error(ErrorCode::failed_precondition, "set deterministic to true"));
}

}  // namespace
}  // namespace cohort
