// SPDX-License-Identifier: Apache-2.0
// With CheckpointWriters::each parameter servers write their shares of a checkpoint themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/inspection.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

using testing::TestCluster;
using testing::throws_error;

constexpr std::int64_t kSmallRows = 1001;
// One of the three shards is more than a chunk.
constexpr std::int64_t kLargeRows = 3'300'000;

const testing::TemporaryFolder& servers_folder() {
  static const testing::TemporaryFolder folder;
  return folder;
}

// A job whose closures each add 1 to some of everything.
class ServersWrite : public ::testing::Test {
 protected:
  explicit ServersWrite(std::vector<std::string> data_dirs = {servers_folder().file("")},
                        Duration data_timeout = std::chrono::minutes(5))
      : cluster_({.workers = 1,
                  .ps = 2,
                  .command = {COHORT_COMMAND, "server"},
                  .data_dirs = std::move(data_dirs)}) {
    ParameterServerOptions options;
    options.partitioner = FixedShardsPartitioner(3);
    options.cluster.data_timeout = data_timeout;
    // A call waits so long for a server that is gone.
    options.cluster.timeout = std::min(options.cluster.timeout, 2 * data_timeout);
    strategy_.emplace(cluster_.resolver(), options);
    count_.emplace(strategy_->variable("count", torch::zeros({}, torch::kLong)));
    rows_.emplace(strategy_->variable("rows", torch::zeros({kSmallRows, 4})));
    large_.emplace(strategy_->variable("large", torch::zeros({kLargeRows, 4})));
    table_.emplace(strategy_->embedding_table(
        "table", {.dim = 4, .initializer = Initializer::zeros(), .min_count = 2}));
    adam_.emplace(std::vector{*rows_, table_->variable()}, AdamOptions{.learning_rate = 0.1});
    coordinator_.emplace(*strategy_);
    checkpoint_.emplace(*strategy_);
  }
  template <class Step>
  void run(Step step) {
    const Function function(std::move(step));
    coordinator_->schedule(function);
    coordinator_->join();
  }
  void add_one() const {
    count_->assign_add(1);
    large_->scatter_add(torch::arange(0, kLargeRows, 1000), torch::ones({kLargeRows / 1000, 4}));
    adam_->minimize(-table_->lookup(keys_).sum() - rows_->tensor().sum());
  }
  CheckpointManager manager_of(CheckpointWriters writers) const {
    return {*checkpoint_, folder(writers), {.writers = writers}};
  }
  std::string folder(CheckpointWriters writers) const {
    return folder_ + (writers == CheckpointWriters::each ? "/each" : "/first");
  }
  std::vector<std::string> names_in(const std::string& path) const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path))
      names.push_back(entry.path().filename().string());
    return names;
  }

  const std::string folder_ =
      servers_folder().file(::testing::UnitTest::GetInstance()->current_test_info()->name());
  const torch::Tensor keys_ = torch::arange(0, 9000, 7), rare_ = torch::arange(100'000, 100'100);
  TestCluster cluster_;
  std::optional<ParameterServerStrategy> strategy_;
  std::optional<Variable> count_, rows_, large_;
  std::optional<EmbeddingTable> table_;
  std::optional<Adam> adam_;
  std::optional<ClusterCoordinator> coordinator_;
  std::optional<Checkpoint> checkpoint_;
};

TEST_F(ServersWrite, TheTensorsThatTheCoordinatorWrites) {
  for (int i = 0; i < 3; ++i) run([this] { add_one(); });
  run([this] { adam_->minimize(-table_->lookup(rare_).sum()); });  // counts, no rows
  CheckpointManager first = manager_of(CheckpointWriters::first);
  CheckpointManager each = manager_of(CheckpointWriters::each);
  const PendingCheckpoint one = first.save(1);
  one.wait();  // a server keeps one moment
  const PendingCheckpoint other = each.save(1);
  other.wait();
  checkpoint::verify(other.path());
  EXPECT_THAT(checkpoint::difference(one.path(), other.path()), ::testing::IsEmpty());
  EXPECT_THAT(names_in(other.path()),
              ::testing::IsSupersetOf({"ps-0-float32.safetensors", "ps-1-float32.safetensors"}));
  run([this] { add_one(); });
  each.restore_latest()->assert_consumed();
  EXPECT_EQ(count_->read().item<std::int64_t>(), 3);
  first.save(2).wait();
  EXPECT_THAT(checkpoint::difference(one.path(), first.latest_checkpoint().value()),
              ::testing::IsEmpty());
}

TEST_F(ServersWrite, WholeClosuresWhileTheyGoOn) {
  const Function step([this] {
    count_->assign_add(1);
    large_->scatter_add(torch::arange(0, kLargeRows, 1000), torch::ones({kLargeRows / 1000, 4}));
  });
  CheckpointManager manager = manager_of(CheckpointWriters::each);
  std::vector<std::string> paths;
  for (std::int64_t i = 0; i < 3; ++i) {
    for (int k = 0; k < 40; ++k) coordinator_->schedule(step);
    paths.push_back(manager.save(i).path());
  }
  coordinator_->join();
  manager.restore_latest();  // waits for the last save
  for (const std::string& path : paths) {
    checkpoint_->read(path).assert_consumed();
    const auto count = static_cast<double>(count_->read().item<std::int64_t>());
    EXPECT_EQ(large_->read().sum().item<double>(), count * 4 * kLargeRows / 1000);
  }
}

class ServersThatFail : public ServersWrite {
 protected:
  ServersThatFail() : ServersWrite({servers_folder().file("")}, std::chrono::seconds(10)) {}
  // The save fails, and what was there before it stays.
  template <class Fail>
  void expect_failed_save(const Fail& fail, ErrorCode code) {
    CheckpointManager manager = manager_of(CheckpointWriters::each);
    const std::string before = manager.save(1).path();
    const PendingCheckpoint saved = manager.save(2);
    fail();
    EXPECT_THAT([&] { saved.wait(); }, throws_error(code, "ps:1"));
    EXPECT_EQ(manager.latest_checkpoint(), before);
    checkpoint::verify(before);
    EXPECT_THAT(names_in(folder(CheckpointWriters::each)),
                ::testing::Not(::testing::Contains(::testing::HasSubstr("step-2"))));
  }
};

TEST_F(ServersThatFail, AreNamedIfTheyAreKilled) {
  expect_failed_save([&] { cluster_.kill("ps:1"); }, ErrorCode::unavailable);
}

TEST_F(ServersThatFail, AreNamedIfTheyAreSilent) {
  expect_failed_save([&] { cluster_.stop("ps:1"); }, ErrorCode::deadline_exceeded);
  cluster_.resume("ps:1");
}

class ServersWithoutFolders : public ServersWrite {
 protected:
  ServersWithoutFolders() : ServersWrite({}) {}
};

TEST_F(ServersWithoutFolders, WriteNothing) {
  CheckpointManager manager = manager_of(CheckpointWriters::each);
  const PendingCheckpoint saved = manager.save(1);
  EXPECT_THAT([&] { saved.wait(); },
              throws_error(ErrorCode::permission_denied, "under this server's data directories"));
  EXPECT_EQ(manager.latest_checkpoint(), std::nullopt);
  EXPECT_THAT(names_in(folder(CheckpointWriters::each)),
              ::testing::Not(::testing::Contains(::testing::HasSubstr("step-"))));
}

}  // namespace
}  // namespace cohort
