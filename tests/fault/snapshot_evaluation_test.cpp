// SPDX-License-Identifier: Apache-2.0
// Evaluations on parameter servers that read the values of one moment, while closures train, and
// while workers and servers are lost.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/cohort.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::TestClusterOptions;
using testing::throws_error;

constexpr std::int64_t kRows = 40;

TestClusterOptions servers(int workers) {
  return {.workers = workers, .ps = 2, .command = {COHORT_COMMAND, "server"}};
}
// For tests that leave it whole: several processes take long to start.
TestCluster& cluster_of(int workers) {
  static std::map<int, TestCluster> clusters;
  return clusters.try_emplace(workers, servers(workers)).first->second;
}

// A job whose closures each add 1 to everything: a number, variables with shards, and a table.
struct TrainedJob {
  explicit TrainedJob(TestCluster& of, CoordinatorOptions options = {.in_flight_per_worker = 1})
      : cluster(of),
        strategy(std::make_unique<ParameterServerStrategy>(cluster.resolver(), with_shards())),
        coordinator(std::make_unique<ClusterCoordinator>(*strategy, options)) {}

  static ParameterServerOptions with_shards() {
    ParameterServerOptions options;
    options.partitioner = FixedShardsPartitioner(2);
    return options;
  }
  // The smallest and the largest of all that the step reads: whole, some rows, and by key.
  torch::Tensor seen(Iterator& elements) const {
    const torch::Tensor ids = elements.next<torch::Tensor>().reshape({-1});
    const torch::Tensor all =
        torch::cat({number.tensor().reshape({1}), dense.tensor().flatten(),
                    torch::embedding(sparse.tensor(), ids).flatten(),
                    sparse.tensor().index_select(0, ids).flatten(), table.lookup(ids).flatten()});
    return torch::stack({all.min(), all.max()});
  }
  void add_one() const {
    const torch::Tensor ids = torch::arange(kRows);
    number.assign_add(torch::ones({}));
    dense.assign_add(torch::ones({kRows, 2}));
    sparse.scatter_add(ids, torch::ones({kRows, 2}));
    sgd.minimize(-table.lookup(ids).sum());
  }
  void train_steps(int count) const {
    for (int i = 0; i < count; ++i) coordinator->schedule(train);
    coordinator->join();
  }
  double trained() const { return number.read().item<double>(); }
  Dataset data() const { return Dataset::range(kRows); }

  // The variables of both servers and their bytes, with those of snapshots.
  std::vector<std::uint64_t> memory() const {
    std::vector<std::uint64_t> all;
    for (const char* ps : {"ps:0", "ps:1"}) {
      const TaskHealth health = cluster.health(ps);
      all.push_back(health.variables);
      all.push_back(health.variable_bytes);
    }
    return all;
  }
  // Nobody waits for servers to drop a snapshot.
  void expect_memory(const std::vector<std::uint64_t>& expected) const {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (memory() != expected && !deadline.has_expired()) std::this_thread::yield();
    EXPECT_EQ(memory(), expected) << "a snapshot is still there";
  }

  TestCluster& cluster;
  std::unique_ptr<ParameterServerStrategy> strategy;
  std::unique_ptr<ClusterCoordinator> coordinator;
  Variable number = strategy->variable("number", torch::zeros({}));
  Variable dense = strategy->variable("dense", torch::zeros({kRows, 2}));
  Variable sparse = strategy->variable("sparse", torch::zeros({kRows, 2}));
  EmbeddingTable table =
      strategy->embedding_table("table", {.dim = 2, .initializer = Initializer::zeros()});
  SGD sgd{{table.variable()}, {.learning_rate = 1}};
  Function train{[this] { add_one(); }};
  Function evaluate{[this](Iterator& elements) { return seen(elements); }};
};

void expect_all(const EpochStep& step, double value) {
  EXPECT_TRUE(step.result.tensor().eq(value).all().item<bool>())
      << "step " << step.index << " of worker " << step.worker << " has seen "
      << step.result.tensor() << " instead of " << value;
}

class SnapshotEvaluation : public ::testing::TestWithParam<int> {
 protected:
  TrainedJob job{cluster_of(GetParam())};
};

TEST_P(SnapshotEvaluation, AllStepsReadTheValuesOfItsBeginning) {
  job.train_steps(3);
  const std::vector<std::uint64_t> memory = job.memory();
  for (int pass = 0; pass < 2; ++pass) {
    const double begin = job.trained();
    int steps = 0;
    const auto on_step = [&](const EpochStep& step) {
      expect_all(step, begin);
      if (++steps % 4 == 0) job.train_steps(2);
    };
    const EpochResult result = job.coordinator->run_epoch(
        job.evaluate, job.data(), EpochOptions{.on_step = on_step, .reads_snapshot = true});
    EXPECT_EQ(result.steps, static_cast<std::uint64_t>(kRows));
    EXPECT_EQ(job.trained(), begin + 2 * kRows / 4);
    job.expect_memory(memory);
  }
}

// The test above can fail.
TEST_P(SnapshotEvaluation, WithoutTheOptionStepsReadTheValuesOfNow) {
  const EpochResult result = job.coordinator->run_epoch(
      job.evaluate, job.data(),
      EpochOptions{.on_step = [&](const EpochStep&) { job.train_steps(1); }});
  EXPECT_GT(result.sum.tensor().max().item<double>(), 0);
}

TEST_P(SnapshotEvaluation, MetricsAreOfOneMomentWhileAThreadTrains) {
  const auto scope = job.strategy->scope();
  const metrics::Mean low({.name = "low"}), high({.name = "high"});
  const Evaluation evaluation(*job.coordinator,
                              [&](Iterator& elements) {
                                const torch::Tensor seen = job.seen(elements);
                                low.update(seen[0]);
                                high.update(seen[1]);
                              },
                              job.data(), {.metrics = {low, high}, .reads_snapshot = true});
  std::atomic<bool> is_over = false;
  std::thread trainer([&] {
    while (!is_over) job.coordinator->schedule(job.train).fetch();
  });
  double last = -1;
  for (int pass = 0; pass < 4; ++pass) {
    const double before = job.trained();
    EXPECT_EQ(evaluation.run(), static_cast<std::uint64_t>(kRows));
    EXPECT_EQ(low.rows(), kRows);
    const double value = low.result();
    EXPECT_EQ(high.result(), value);
    EXPECT_EQ(value, std::floor(value));
    EXPECT_GE(value, before);
    EXPECT_GE(value, last);
    EXPECT_LE(value, job.trained());
    last = value;
  }
  is_over = true;
  trainer.join();
}

// All workers are killed while each is in a step.
TEST_P(SnapshotEvaluation, AStepOfAKilledWorkerSeesTheSameValuesAgain) {
  const Variable go = job.strategy->variable("go", torch::zeros({}));
  const Function waits([&](Iterator& elements) {
    go.wait_until_positive();
    return job.seen(elements);
  });
  job.train_steps(3);
  const std::vector<std::uint64_t> memory = job.memory();
  std::thread evaluation([&] {
    const EpochResult result = job.coordinator->run_epoch(
        waits, job.data(),
        EpochOptions{.on_step = [](const EpochStep& step) { expect_all(step, 3); },
                     .reads_snapshot = true});
    EXPECT_EQ(result.steps, static_cast<std::uint64_t>(kRows));
  });
  std::vector<std::string> workers;
  for (int i = 0; i < GetParam(); ++i) workers.push_back("worker:" + std::to_string(i));
  for (const std::string& worker : workers) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (job.cluster.health(worker).closures_running == 0 && !deadline.has_expired())
      std::this_thread::yield();
  }
  for (const std::string& worker : workers) job.cluster.kill(worker);
  for (const Variable& each : {job.number, job.dense, job.sparse})
    each.assign_add(torch::ones(each.tensor().sizes()));
  for (const std::string& worker : workers) job.cluster.restart(worker);
  go.assign(torch::ones({}));
  evaluation.join();
  EXPECT_GE(job.coordinator->statistics().retries, workers.size()) << "the kills met no step";
  EXPECT_EQ(job.trained(), 4);
  job.expect_memory(memory);
}

INSTANTIATE_TEST_SUITE_P(Workers, SnapshotEvaluation, ::testing::Values(1, 2, 3));

TEST(SnapshotEvaluations, MayBeAtOnceAndWithSaves) {
  const testing::TemporaryFolder folder;
  TrainedJob job(cluster_of(2));
  const Checkpoint checkpoint(*job.strategy);
  job.train_steps(1);
  const std::vector<std::uint64_t> memory = job.memory();
  int outer_steps = 0;
  const auto inner = [&](double value) {
    job.coordinator->run_epoch(
        job.evaluate, job.data(),
        EpochOptions{.on_step = [&](const EpochStep& step) { expect_all(step, value); },
                     .reads_snapshot = true});
  };
  const auto on_step = [&](const EpochStep& step) {
    expect_all(step, 1);
    if (++outer_steps != 5) return;
    job.train_steps(1);
    inner(2);
    checkpoint.write(folder.file("c"));
    job.train_steps(1);
    inner(3);
    checkpoint.read(folder.file("c"));
    inner(2);
  };
  job.coordinator->run_epoch(job.evaluate, job.data(),
                             EpochOptions{.on_step = on_step, .reads_snapshot = true});
  EXPECT_EQ(job.trained(), 2);
  job.expect_memory(memory);
}

TEST(SnapshotEvaluations, WhatTheyCannotReadIsRefusedAndLeavesNothing) {
  TrainedJob job(cluster_of(2));
  job.train_steps(2);
  const std::vector<std::uint64_t> memory = job.memory();
  const auto run = [&](const Function& step) {
    job.coordinator->run_epoch(step, Dataset::range(13).batch(2),
                               EpochOptions{.reads_snapshot = true});
  };
  const Function reads_its_update([&](Iterator& elements) {
    elements.next<torch::Tensor>();
    job.number.assign_add(torch::ones({}));
    return job.number.read();
  });
  EXPECT_THAT([&] { run(reads_its_update); },
              throws_error(ErrorCode::failed_precondition, "a step reads or updates a variable"));
  const Function reads_another([&](Iterator& elements) {
    const bool is_short = elements.next<torch::Tensor>().size(0) < 2;
    return (is_short ? job.dense : job.sparse).read().sum();
  });
  EXPECT_THAT([&] { run(reads_another); },
              throws_error(ErrorCode::failed_precondition, "for elements of some shapes only"));
  run(reads_another);  // what it reads is known now
  const Function fails([&](Iterator& elements) {
    return job.dense.tensor().index_select(0, elements.next<torch::Tensor>().add(kRows - 5));
  });
  EXPECT_THAT([&] { run(fails); },
              throws_error(ErrorCode::invalid_argument, "expected ids of the 40 rows"));
  const Function reads_nothing([](Iterator& elements) { return elements.next<torch::Tensor>(); });
  run(reads_nothing);
  job.expect_memory(memory);
  const Function all([&](Iterator& elements) { return job.seen(elements); });
  run(all);
}

TEST(SnapshotEvaluations, WaitForTheValueOfNow) {
  TrainedJob job(cluster_of(2));
  const Variable go = job.strategy->variable("go", torch::zeros({}));
  const Function waits([&](Iterator& elements) {
    go.wait_until_positive();
    return job.seen(elements);
  });
  Epoch epoch = job.coordinator->begin_epoch_nests(
      waits, job.coordinator->distribute_dataset(job.data()), {}, {.reads_snapshot = true});
  go.assign(torch::ones({}));
  job.train_steps(1);
  int steps = 0;
  for (; const std::optional<EpochStep> step = epoch.try_next(); ++steps) expect_all(*step, 0);
  EXPECT_EQ(steps, kRows);
}

// Its values are gone, so there is no number.
TEST(SnapshotEvaluations, AServerThatIsStartedAgainEndsThem) {
  TestCluster own(servers(2));
  TrainedJob job(own);
  job.train_steps(1);
  int steps = 0;
  const auto on_step = [&](const EpochStep& step) {
    expect_all(step, 1);
    if (++steps != 10) return;
    job.cluster.kill("ps:1");
    job.cluster.restart("ps:1");
  };
  EXPECT_THAT(
      [&] {
        // So many steps that the worker cannot have made all before on_step sees the tenth.
        job.coordinator->run_epoch(job.evaluate, job.data().repeat(200),
                                   EpochOptions{.on_step = on_step, .reads_snapshot = true});
      },
      throws_error(ErrorCode::unavailable, "ps:1"));
}

TEST(SnapshotEvaluations, EndWithTheirStrategy) {
  TrainedJob job(cluster_of(1));
  Epoch epoch = job.coordinator->begin_epoch_nests(
      job.evaluate, job.coordinator->distribute_dataset(job.data()), {}, {.reads_snapshot = true});
  EXPECT_TRUE(epoch.try_next());
  EXPECT_GT(job.memory()[0], 0U);
  { const Epoch ends = std::move(epoch); }
  job.coordinator.reset();
  job.strategy.reset();
  job.expect_memory({0, 0, 0, 0});
}

TEST(SnapshotEvaluations, NeedACoordinatorWithWorkers) {
  OneDeviceStrategy device;
  EXPECT_THAT(
      [&] {
        Evaluation(device, [](const torch::Tensor&) {},
                   device.distribute_dataset(Dataset::range(3)), {.reads_snapshot = true});
      },
      throws_error(ErrorCode::invalid_argument, "reads_snapshot only with a ClusterCoordinator"));
  TrainedJob job(cluster_of(1), {.run_eagerly = true});
  EXPECT_THAT(
      [&] {
        job.coordinator->run_epoch(job.evaluate, job.data(), EpochOptions{.reads_snapshot = true});
      },
      throws_error(ErrorCode::unimplemented, "switch run_eagerly off"));
}

}  // namespace
}  // namespace cohort
