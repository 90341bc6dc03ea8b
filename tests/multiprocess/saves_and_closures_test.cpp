// SPDX-License-Identifier: Apache-2.0
// A checkpoint that is saved while closures run has whole closures: each of its values has the same
// number of updates.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/data/dataset.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

constexpr std::int64_t kRows = 20'000;

// A job whose closures each add 1 to some of everything: a number, a whole variable, rows of one
// with shards, and rows of a table.
class SavesAndClosures : public ::testing::TestWithParam<std::int64_t> {
 protected:
  SavesAndClosures() {
    ParameterServerOptions options;
    options.partitioner = FixedShardsPartitioner(2);
    strategy_.emplace(cluster().resolver(), options);
    count_.emplace(strategy_->variable("count", torch::zeros({}, torch::kLong)));
    whole_.emplace(strategy_->variable("whole", torch::zeros({kRows, 4})));
    rows_.emplace(strategy_->variable("rows", torch::zeros({kRows, 4})));
    table_.emplace(
        strategy_->embedding_table("table", {.dim = 4, .initializer = Initializer::zeros()}));
    sgd_.emplace(std::vector{table_->variable()}, SGDOptions{.learning_rate = 1});
    coordinator_.emplace(*strategy_);
    checkpoint_.emplace(*strategy_);
  }
  static TestCluster& cluster() {
    static TestCluster cluster({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}});
    return cluster;
  }
  void add_one() const {
    count_->assign_add(1);
    whole_->assign_add(torch::ones({kRows, 4}));
    rows_->scatter_add(ids_, torch::ones({ids_.numel(), 4}));
    sgd_->minimize(-table_->lookup(ids_).sum());
  }
  void expect_updates_of(std::int64_t count) const {
    const auto expected = static_cast<double>(count);
    EXPECT_TRUE(whole_->read().eq(expected).all().item<bool>()) << count;
    const torch::Tensor rows = rows_->read();
    EXPECT_TRUE(rows.index_select(0, ids_).eq(expected).all().item<bool>()) << count;
    EXPECT_EQ(rows.sum().item<double>(), expected * 4 * static_cast<double>(ids_.numel()));
    EXPECT_TRUE(table_->lookup(ids_).eq(expected).all().item<bool>()) << count;
  }

  const testing::TemporaryFolder folder_;
  const torch::Tensor ids_ = torch::arange(0, kRows, 7);
  std::optional<ParameterServerStrategy> strategy_;
  std::optional<Variable> count_, whole_, rows_;
  std::optional<EmbeddingTable> table_;
  std::optional<SGD> sgd_;
  std::optional<ClusterCoordinator> coordinator_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_P(SavesAndClosures, HaveWholeClosures) {
  const Function step([this] { add_one(); });
  std::vector<std::string> paths;
  {
    CheckpointManager manager(*checkpoint_, folder_.file("c"), {.memory_max_bytes = GetParam()});
    for (std::int64_t i = 0; i < 5; ++i) {
      for (int k = 0; k < 40; ++k) coordinator_->schedule(step);
      paths.push_back(manager.save(i).path());
    }
    coordinator_->join();
  }
  expect_updates_of(200);
  for (const std::string& path : paths) {
    checkpoint_->read(path).assert_consumed();
    expect_updates_of(count_->read().item<std::int64_t>());
  }
}

TEST_P(SavesAndClosures, HaveWholeStepsOfAnEpoch) {
  const PerWorkerDataset data = coordinator_->distribute_dataset(Dataset::range(60));
  const Function step([this](Iterator& iterator) {
    const torch::Tensor element = iterator.next<torch::Tensor>();
    add_one();
    return element;
  });
  std::vector<std::string> paths;
  {
    CheckpointManager manager(*checkpoint_, folder_.file("c"), {.memory_max_bytes = GetParam()});
    std::int64_t steps = 0;
    coordinator_->run_epoch(step, data, EpochOptions{.on_step = [&](const EpochStep&) {
                              if (++steps % 20 == 0) paths.push_back(manager.save(steps).path());
                            }});
  }
  ASSERT_EQ(paths.size(), 3U);
  expect_updates_of(60);
  for (const std::string& path : paths) {
    checkpoint_->read(path);
    expect_updates_of(count_->read().item<std::int64_t>());
  }
}

INSTANTIATE_TEST_SUITE_P(Memory, SavesAndClosures, ::testing::Values(10'000, 64 << 20));

TEST(SavesWithClosures, WaitForThoseThatRun) {
  const testing::TemporaryFolder folder;
  TestCluster cluster({.workers = 1, .ps = 1, .command = {COHORT_COMMAND, "server"}});
  ParameterServerStrategy strategy(cluster.resolver());
  const Variable count = strategy.variable("count", torch::zeros({}, torch::kLong));
  const Variable flag = strategy.variable("flag", torch::zeros({}, torch::kLong));
  ClusterCoordinator coordinator(strategy);
  const Function step([&] {
    flag.wait_until_positive();
    count.assign_add(1);
  });
  coordinator.schedule(step);
  const Checkpoint checkpoint(strategy);
  std::thread save([&] { checkpoint.write(folder.file("c")); });
  flag.assign(1);
  save.join();
  coordinator.join();
  count.assign(5);
  flag.assign(0);
  coordinator.schedule(step);
  EXPECT_THAT([&] { checkpoint.read(folder.file("c")); },
              throws_error(ErrorCode::failed_precondition, "call join()"));
  flag.assign(1);
  coordinator.join();
  checkpoint.read(folder.file("c"));
  EXPECT_EQ(count.read().item<std::int64_t>(), 1);
}

}  // namespace
}  // namespace cohort
