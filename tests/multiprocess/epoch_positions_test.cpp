// SPDX-License-Identifier: Apache-2.0
// Positions of epochs over standard servers in other processes: what a restored epoch uses, and
// which positions are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <optional>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

constexpr std::int64_t kRows = 40;

// A job that counts how often each element is used.
struct CountingJob {
  explicit CountingJob(TestCluster& cluster, CoordinatorOptions options = {})
      : strategy(cluster.resolver()),
        coordinator(strategy, options),
        uses(strategy.variable("uses", torch::zeros({kRows}, torch::kLong),
                               {.is_trainable = false})),
        count([this](Iterator& it) {
          const at::Tensor ids = it.next<at::Tensor>();
          uses.scatter_add(ids, torch::ones_like(ids));
          return ids.sum();
        }) {}
  PerWorkerDataset shuffled() {
    return coordinator.distribute_dataset(Dataset::range(kRows).shuffle(kRows).batch(2));
  }

  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  const Variable uses;
  const Function count;
};

class EpochPositions : public ::testing::Test {
 protected:
  static TestCluster& cluster_of(int workers) {
    static std::unique_ptr<TestCluster> one, two;
    std::unique_ptr<TestCluster>& cluster = workers == 1 ? one : two;
    if (cluster == nullptr) {
      cluster = std::make_unique<TestCluster>(testing::TestClusterOptions{
          .workers = workers, .ps = 1, .command = {COHORT_COMMAND, "server"}});
    }
    return *cluster;
  }
  // In the middle of the first pass, over two workers.
  static Bytes in_a_pass(const PerWorkerDataset& data, CountingJob& job) {
    Epoch epoch = job.coordinator.begin_epoch(job.count, data);
    EXPECT_TRUE(epoch.try_next());
    return data.save();
  }

  const testing::TemporaryFolder folder_;
};

TEST_F(EpochPositions, ARestoredEpochUsesTheRestOfItsElements) {
  {
    CountingJob job(cluster_of(2), {.in_flight_per_worker = 1});
    const PerWorkerDataset data = job.shuffled();
    Checkpoint checkpoint(job.strategy);
    checkpoint.add("data", data);
    job.coordinator.run_epoch(job.count, data);
    Epoch epoch = job.coordinator.begin_epoch(job.count, data);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(epoch.try_next());
    checkpoint.write(folder_.file("c"), 3);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(epoch.try_next());  // goes on, and is lost
  }
  CountingJob job(cluster_of(2));
  const PerWorkerDataset data = job.shuffled();
  Checkpoint checkpoint(job.strategy);
  checkpoint.add("data", data);
  checkpoint.read(folder_.file("c")).assert_consumed();
  const std::int64_t used = job.uses.read().sum().item<std::int64_t>();
  EXPECT_GE(used, kRows + 3 * 2);
  EXPECT_LT(used, 2 * kRows);
  const EpochResult rest = job.coordinator.run_epoch(job.count, data);
  EXPECT_EQ(static_cast<std::int64_t>(rest.examples), 2 * kRows - used);
  EXPECT_TRUE(torch::equal(job.uses.read(), torch::full({kRows}, 2, torch::kLong)));
  EXPECT_EQ(job.coordinator.run_epoch(job.count, data).examples, kRows);
}

TEST_F(EpochPositions, APassThatHasEndedMayHaveOtherWorkers) {
  Bytes position;
  {
    CountingJob job(cluster_of(2));
    const PerWorkerDataset data = job.shuffled();
    job.coordinator.run_epoch(job.count, data);
    position = data.save();
  }
  CountingJob job(cluster_of(1));
  const PerWorkerDataset data = job.shuffled();
  data.restore(position);
  EXPECT_EQ(job.coordinator.run_epoch(job.count, data).examples, kRows);
}

TEST_F(EpochPositions, APassInTheMiddleNeedsTheSameWorkersAndDataset) {
  Bytes position;
  {
    CountingJob job(cluster_of(2));
    const PerWorkerDataset data = job.shuffled();
    position = in_a_pass(data, job);
    const auto other = [&](const Dataset& dataset) {
      return
          [&, others = job.coordinator.distribute_dataset(dataset)] { others.restore(position); };
    };
    EXPECT_THAT(other(Dataset::range(kRows).batch(4)),
                throws_error(ErrorCode::invalid_argument, "another dataset or other batches"));
    EXPECT_THAT(other(Dataset::from_tensor_slices(torch::ones({kRows})).batch(2)),
                throws_error(ErrorCode::invalid_argument, "a dataset of elements"));
    const std::span<const std::byte> part(position.data(), position.size() - 1);
    EXPECT_THAT([&] { data.restore(part); }, throws_error(ErrorCode::data_loss, "position"));
    position[0] = std::byte{9};
    EXPECT_THAT([&] { data.restore(position); },
                throws_error(ErrorCode::unimplemented, "got version 9"));
    position[0] = std::byte{1};
  }
  CountingJob job(cluster_of(1));
  EXPECT_THAT([&] { job.shuffled().restore(position); },
              throws_error(ErrorCode::invalid_argument,
                           "a position of 1 workers, got one in the middle of a pass of 2"));
}

TEST_F(EpochPositions, CallsDuringOtherEpochsAreRefused) {
  CountingJob job(cluster_of(2));
  const PerWorkerDataset data = job.shuffled();
  const Bytes position = in_a_pass(data, job);
  Epoch epoch = job.coordinator.begin_epoch(job.count, data);
  EXPECT_TRUE(epoch.try_next());
  EXPECT_THAT([&] { data.restore(position); },
              throws_error(ErrorCode::failed_precondition, "restore between two epochs"));
  Epoch second = job.coordinator.begin_epoch(job.count, data);
  EXPECT_TRUE(second.try_next());
  EXPECT_THAT([&] { data.save(); },
              throws_error(ErrorCode::failed_precondition, "one epoch at a time"));
}

TEST_F(EpochPositions, AnOrderThatMayChangeIsRefused) {
  CountingJob job(cluster_of(2));
  const PerWorkerDataset data =
      job.coordinator.create_per_worker_dataset([](const InputContext& input) {
        return Dataset::range(kRows).shard(input).batch(2).map(
            [](const at::Tensor& x) { return x + 0; },
            {.num_parallel_calls = 2, .deterministic = false});
      });
  Epoch epoch = job.coordinator.begin_epoch(job.count, data);
  EXPECT_TRUE(epoch.try_next());
  EXPECT_THAT([&] { data.save(); },
              throws_error(ErrorCode::failed_precondition, "set deterministic to true"));
}

// Its rows are those of the workers, and none says with what a new worker begins.
TEST_F(EpochPositions, APerWorkerVariableNeedsTheSameWorkers) {
  {
    ParameterServerStrategy strategy(cluster_of(2).resolver());
    const PerWorkerVariable own = strategy.per_worker_variable("own", torch::ones({3}));
    Checkpoint(strategy).write(folder_.file("c"));
  }
  ParameterServerStrategy strategy(cluster_of(1).resolver());
  const PerWorkerVariable own = strategy.per_worker_variable("own", torch::zeros({3}));
  const Checkpoint checkpoint(strategy);
  EXPECT_THAT([&] { checkpoint.read(folder_.file("c")); },
              throws_error(ErrorCode::invalid_argument,
                           "to be float32[2, 3], as 'own' is, got float32[3, 3]"));
  EXPECT_NO_THROW(
      checkpoint.read(folder_.file("c"), {.names = {{"own", "other"}}, .allow_missing = true}));
}

TEST_F(EpochPositions, EagerEpochsBeginWithTheirFirstElement) {
  Bytes position;
  {
    CountingJob job(cluster_of(2));
    position = in_a_pass(job.shuffled(), job);
  }
  CountingJob job(cluster_of(2), {.run_eagerly = true});
  EXPECT_THAT([&] { job.shuffled().restore(position); },
              throws_error(ErrorCode::failed_precondition, "run without run_eagerly"));
}

}  // namespace
}  // namespace cohort
