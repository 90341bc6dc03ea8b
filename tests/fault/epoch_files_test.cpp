// SPDX-License-Identifier: Apache-2.0
// Files that change while a lost worker of an epoch is away. Once it continued at its element
// number over the changed rows: some were trained twice and others never, without a word.
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/throws_error.h"

namespace cohort {
namespace {

namespace fs = std::filesystem;
using testing::TestCluster;
using testing::throws_error;

// Each worker's file has this many rows, more than the 1024 steps that may have ended before their
// results are taken.
constexpr std::int64_t kRows = 2000;

class Folder {
 public:
  Folder() {
    std::string pattern = ::testing::TempDir() + "epoch_files_XXXXXX";
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string file(std::int64_t worker) const {
    return path + "/rows-" + std::to_string(worker) + ".csv";
  }
  // The numbers from `first` on, one a row.
  void write(std::int64_t worker, std::int64_t first) const {
    std::ofstream out(file(worker), std::ios::binary | std::ios::trunc);
    for (std::int64_t i = 0; i < kRows; ++i) out << first + i << '\n';
  }

  std::string path;
};

class EpochFilesTest : public ::testing::Test {
 protected:
  EpochFilesTest()
      : cluster({.workers = 2,
                 .ps = 1,
                 .command = {COHORT_COMMAND, "server"},
                 .data_dirs = {folder.path}}),
        strategy(cluster.resolver()),
        coordinator(strategy),
        sum(strategy.variable("sum", at::zeros({}, at::kLong), {.is_trainable = false})),
        add([this](Iterator& it) {
          const at::Tensor x = it.next<at::Tensor>();
          sum.assign_add(x.sum());
          return x.sum();
        }) {
    folder.write(0, 1000);
    folder.write(1, 5000);
  }

  PerWorkerDataset data() {
    return coordinator.create_per_worker_dataset([this](const InputContext& input) {
      return Dataset::csv(StringTensor(folder.file(input.input_pipeline_id)),
                          {.columns = {{.dtype = at::kLong}}})
          .shuffle(20, {.seed = 3});
    });
  }
  // One epoch, in which worker 1 is away while `meanwhile` runs.
  EpochResult run(const std::function<void()>& meanwhile) {
    std::uint64_t of_worker = 0;
    const auto on_step = [&](const EpochStep& step) {
      rows.insert(step.result.tensor().item<std::int64_t>());
      if (step.worker != 1 || ++of_worker != 100) return;
      cluster.kill("worker:1");
      meanwhile();
      cluster.restart("worker:1");
    };
    return coordinator.run_epoch(add, data(), {.on_step = on_step});
  }

  Folder folder;
  TestCluster cluster;
  ParameterServerStrategy strategy;
  ClusterCoordinator coordinator;
  Variable sum;
  Function add;
  std::multiset<std::int64_t> rows;
};

TEST_F(EpochFilesTest, AChangeEndsTheEpochWithAnErrorThatNamesTheFile) {
  EXPECT_THAT([&] { run([&] { folder.write(1, 5001); }); },
              throws_error(ErrorCode::data_loss, "'" + folder.file(1) + "'"));
}

TEST_F(EpochFilesTest, AnEpochAfterTheErrorReadsTheNewFile) {
  EXPECT_THROW(run([&] { folder.write(1, 5001); }), Error);
  rows.clear();
  const auto note = [&](const EpochStep& step) {
    rows.insert(step.result.tensor().item<std::int64_t>());
  };
  coordinator.run_epoch(add, data(), {.on_step = note});
  EXPECT_EQ(rows.size(), 2U * kRows);
  EXPECT_EQ(*rows.rbegin(), 5001 + kRows - 1);
}

// Files have other times there, as on another host.
TEST_F(EpochFilesTest, ACopyOfTheSameFileContinuesTheEpochExactly) {
  const EpochResult result = run([&] {
    fs::remove(folder.file(1));
    folder.write(1, 5000);
    fs::last_write_time(folder.file(1),
                        fs::last_write_time(folder.file(1)) + std::chrono::hours(1));
  });
  EXPECT_EQ(result.steps, 2U * kRows);
  EXPECT_EQ(rows.size(), 2U * kRows);
  EXPECT_EQ(std::set<std::int64_t>(rows.begin(), rows.end()).size(), rows.size());
  EXPECT_EQ(sum.read().item<std::int64_t>(), (1000 + 5000) * kRows + kRows * (kRows - 1));
}

}  // namespace
}  // namespace cohort
