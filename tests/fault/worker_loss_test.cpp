// SPDX-License-Identifier: Apache-2.0
// Workers that die while a job runs.
#include <ATen/ops/embedding.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"
#include "cohort/testing/warnings.h"

namespace cohort {
namespace {

using testing::TestCluster;

constexpr auto kPatience = std::chrono::seconds(60);

class WorkerLossTest : public ::testing::Test {
 protected:
  WorkerLossTest()
      : cluster({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver(), {.partitioner =
                                          [](const TensorSpec& spec) {
                                            std::vector<std::int64_t> shards(spec.sizes->size(), 1);
                                            if (shards.size() == 2) shards.front() = 2;
                                            return shards;
                                          }}),
        coordinator(strategy),
        a(strategy.variable("a", at::zeros({2}))),
        b(strategy.variable("b", at::zeros({2}))),
        table(strategy.variable("table", at::zeros({100, 2}))),
        users(strategy.embedding_table("users", {.dim = 2, .initializer = Initializer::zeros()})),
        sgd({users.variable()}, {.learning_rate = 1}),
        // About a millisecond of work, and one update on each parameter server.
        step([this] {
          const at::Tensor x = at::ones({400, 400});
          a.assign_add(at::ones({2}));
          b.assign_add(at::mm(x, x).slice(0, 0, 2).select(1, 0).div(400));
          const at::Tensor rows = at::embedding(table.tensor(), row_ids);
          table.scatter_add(row_ids, rows.mul(0).add(1));
          sgd.minimize(users.lookup(keys).sum());
        }) {}

  std::uint64_t completed() const {
    const auto closures = coordinator.statistics().closures;
    return closures[0] + closures[1];
  }
  // Calls join() repeatedly, so that this thread can trace programs that closures wait for.
  void run_until(std::uint64_t count) {
    const Deadline deadline = Deadline::after(kPatience);
    while (completed() < count && !deadline.has_expired())
      coordinator.join(std::chrono::milliseconds(1));
    ASSERT_GE(completed(), count);
  }
  // Kills a worker while it has closures. It is stopped first, so that they cannot end before.
  void kill_busy(std::size_t worker, std::uint64_t total) {
    const std::string task = "worker:" + std::to_string(worker);
    cluster.stop(task);
    const std::uint64_t others = coordinator.statistics().closures[1 - worker];
    ASSERT_LT(completed(), total) << "the job was over before the kill";
    const Deadline deadline = Deadline::after(kPatience);
    // Once the other worker has run ten more closures, the stopped one has received its own.
    while (coordinator.statistics().closures[1 - worker] < others + 10 && !deadline.has_expired())
      coordinator.join(std::chrono::milliseconds(1));
    ASSERT_LT(completed(), total) << "nothing was left for it";
    cluster.kill(task);
  }
  std::uint64_t pushes_applied() const {
    return cluster.health("ps:0").pushes_applied + cluster.health("ps:1").pushes_applied;
  }
  void expect_each_update_once(double count) {
    EXPECT_TRUE(a.read().eq(count).all().item<bool>()) << a.read();
    EXPECT_TRUE(b.read().eq(count).all().item<bool>()) << b.read();
    const at::Tensor expected = at::zeros({100, 2}).index_fill(0, row_ids, count);
    EXPECT_TRUE(at::equal(table.read(), expected)) << table.read().index_select(0, row_ids);
    const at::Tensor rows = users.lookup(keys).select(1, 1);
    EXPECT_TRUE(at::equal(rows, at::tensor({-2.F, -1.F, -2.F, -1.F}).mul(count))) << rows;
    EXPECT_EQ(users.size(), 3);
  }

  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable a, b;
  Variable table;  // a shard on each server
  EmbeddingTable users;
  SGD sgd;
  const at::Tensor row_ids = at::tensor({3, 97}, at::kLong);
  const at::Tensor keys = at::tensor({1, 2, 1, -4}, at::kLong);
  Function step;
};

TEST_F(WorkerLossTest, EveryClosureEndsAndIsAppliedOnceWhenAWorkerIsKilledAndReturns) {
  const std::uint64_t before = pushes_applied();
  std::vector<RemoteValue> results;
  for (int i = 0; i < 600; ++i) results.push_back(coordinator.schedule(step));
  run_until(100);
  kill_busy(1, results.size());
  run_until(200);
  const auto at_restart = coordinator.statistics().closures[1];
  cluster.restart("worker:1");
  coordinator.join();
  const Deadline deadline = Deadline::after(kPatience);
  while (coordinator.statistics().closures[1] == at_restart && !deadline.has_expired()) {
    results.push_back(coordinator.schedule(step));
    results.push_back(coordinator.schedule(step));
    coordinator.join();
  }
  EXPECT_GT(coordinator.statistics().closures[1], at_restart) << "the worker never came back";
  for (const RemoteValue& result : results) EXPECT_TRUE(result.is_ready());
  EXPECT_GT(coordinator.statistics().retries, 0U) << "the kill met no closure";
  expect_each_update_once(static_cast<double>(results.size()));
  EXPECT_EQ(pushes_applied() - before, 2 * results.size());
}

TEST_F(WorkerLossTest, TheRestFinishWhenAWorkerNeverReturns) {
  for (int i = 0; i < 300; ++i) coordinator.schedule(step);
  run_until(50);
  kill_busy(0, 300);
  coordinator.join();
  EXPECT_EQ(completed(), 300U);
  EXPECT_GT(coordinator.statistics().retries, 0U);
  expect_each_update_once(300);
}

TEST_F(WorkerLossTest, ResultsSurviveTheWorkerThatMadeThem) {
  Function make([] { return at::ones({2}); });
  const RemoteValue value = coordinator.schedule(make);
  coordinator.join();
  cluster.kill("worker:0");
  cluster.kill("worker:1");
  EXPECT_TRUE(value.fetch().tensor().eq(1).all().item<bool>());
}

TEST_F(WorkerLossTest, BothWorkersMayDieAndReturn) {
  for (int i = 0; i < 200; ++i) coordinator.schedule(step);
  run_until(20);
  cluster.kill("worker:0");
  cluster.kill("worker:1");
  EXPECT_TRUE(a.read().defined()) << "a parameter server answers while no worker is there";
  cluster.restart("worker:0");
  cluster.restart("worker:1");
  coordinator.join();
  expect_each_update_once(200);
}

TEST_F(WorkerLossTest, IteratorsAreRebuiltOnAWorkerThatReturns) {
  auto data = coordinator.create_per_worker_dataset(Dataset::range(8).repeat().batch(4));
  auto iterator = data.iterator();
  Function draw([this](Iterator& it) {
    a.assign_add(it.next<at::Tensor>().gt(-1).sum().div(4).expand({2}));
  });
  for (int i = 0; i < 50; ++i) coordinator.schedule(draw, iterator);
  coordinator.join();
  cluster.kill("worker:0");
  cluster.kill("worker:1");
  cluster.restart("worker:0");
  for (int i = 0; i < 50; ++i) coordinator.schedule(draw, iterator);
  coordinator.join();
  EXPECT_TRUE(a.read().eq(100).all().item<bool>()) << a.read();
}

TEST_F(WorkerLossTest, ALostParameterServerIsAnErrorThatNamesIt) {
  cluster.kill("ps:1");
  try {
    for (int i = 0; i < 100; ++i) coordinator.schedule(step);
    coordinator.join();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.origin(), "ps:1") << error.what();
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
  }
}

// The error was invalid_argument with exit code 64, as for a mistake in the program.
TEST_F(WorkerLossTest, ARestartedParameterServerIsOneThatIsLost) {
  coordinator.schedule(step);
  coordinator.join();
  cluster.restart("ps:1");
  try {
    for (int i = 0; i < 100; ++i) coordinator.schedule(step);
    coordinator.join();
    FAIL() << "expected an error";
  } catch (const Error& error) {
    EXPECT_EQ(error.origin(), "ps:1") << error.what();
    EXPECT_EQ(error.code(), ErrorCode::unavailable) << error.what();
    EXPECT_EQ(exit_code_of(error), 69);
  }
  EXPECT_THAT([&] { b.read(); }, testing::throws_error(ErrorCode::unavailable, "was restarted"));
  // After the handshake with the coordinator, the server answers that it has no such variable.
  const auto run_again = [&] {
    coordinator.schedule(step);
    coordinator.join();
  };
  EXPECT_THAT(run_again, testing::throws_error(ErrorCode::unavailable, "has lost its variables"));
  // Regression: the log of the server had a line "has not met this start of the coordinator" for
  // each connection, and none said what to do.
  const std::string log = cluster.output("ps:1");
  EXPECT_EQ(testing::count_of("the variables that it had are lost", log), 1);
  EXPECT_EQ(testing::count_of("this start of the coordinator", log), 0);
  EXPECT_LE(testing::count_of("refused", log), 2) << "one line for each worker: " << log;
}

// The connections of a stopped process stay open, so only unanswered health calls reveal the loss.
TEST(StoppedWorkerTest, TheOthersFinishItsClosures) {
  TestCluster cluster({.workers = 2, .ps = 1, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  ClusterCoordinator coordinator(strategy, {.heartbeat = std::chrono::milliseconds(500)});
  Variable sum = strategy.variable("sum", at::zeros({}));
  Function step([&] { sum.assign_add(at::ones({})); });
  coordinator.schedule(step).fetch();
  cluster.stop("worker:1");
  for (int i = 0; i < 50; ++i) coordinator.schedule(step);
  EXPECT_TRUE(coordinator.join(kPatience));
  cluster.resume("worker:1");
  for (int i = 0; i < 50; ++i) coordinator.schedule(step);
  EXPECT_TRUE(coordinator.join(kPatience));
  EXPECT_EQ(sum.read().item<float>(), 101);
}

// One worker, and a parameter server that does not answer but keeps its connections open.
class HungParameterServerTest : public ::testing::Test {
 protected:
  HungParameterServerTest()
      : cluster({.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}}),
        strategy(cluster.resolver(), {.cluster = {.data_timeout = kTimeout}}),
        coordinator(strategy),
        sum(strategy.variable("sum", at::zeros({}))),
        push([this] { sum.assign_add(at::ones({})); }),
        pull([this] { sum.assign(sum.tensor().add(1)); }) {
    coordinator.schedule(push);
    coordinator.schedule(pull);
    coordinator.join();
    cluster.stop("ps:0");
  }
  // Expects that join() throws, although it has no deadline of its own.
  void expect_join_names_it(const std::string& expected) {
    try {
      coordinator.join();
      FAIL() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::deadline_exceeded) << error.what();
      EXPECT_EQ(error.origin(), "ps:0") << error.what();
      EXPECT_THAT(error.message(),
                  ::testing::HasSubstr(expected + " from ps:0 within 2 s, got none; see whether"));
    }
  }
  // Expects that no closure is left, and that new ones run after the parameter server resumes.
  void expect_it_serves_when_it_goes_on() {
    EXPECT_TRUE(coordinator.done());
    cluster.resume("ps:0");
    const float before = sum.read().item<float>();
    for (int i = 0; i < 10; ++i) coordinator.schedule(push);
    EXPECT_TRUE(coordinator.join(kPatience));
    EXPECT_GE(sum.read().item<float>(), before + 10) << "the late ones may count too";
  }

  static constexpr auto kTimeout = std::chrono::seconds(2);
  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable sum;
  Function push, pull;
};

// No closure ended, and the error named the worker.
TEST_F(HungParameterServerTest, APushWithoutAnAcknowledgementNamesIt) {
  for (int i = 0; i < 10; ++i) coordinator.schedule(push);
  expect_join_names_it("[server.push] expected an acknowledgement");
  expect_it_serves_when_it_goes_on();
}

// After one second, whatever data_timeout was, the error said that the variables may be lost.
TEST_F(HungParameterServerTest, AWorkerThatConnectsAnewWaitsAsLong) {
  cluster.kill("worker:0");
  cluster.restart("worker:0");
  coordinator.schedule(push);
  expect_join_names_it("[server.connect] expected an answer");
  expect_it_serves_when_it_goes_on();
}

// The failure of the pull was not passed on, so the closure of the earlier push never ended.
TEST_F(HungParameterServerTest, APullWithoutAnAnswerEndsThePushesBeforeIt) {
  coordinator.schedule(push);
  for (int i = 0; i < 10; ++i) coordinator.schedule(pull);
  expect_join_names_it("[server.pull] expected an answer");
  expect_it_serves_when_it_goes_on();
}

}  // namespace
}  // namespace cohort
