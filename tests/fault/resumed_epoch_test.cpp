// SPDX-License-Identifier: Apache-2.0
// A job on parameter servers that is killed whole, at any moment, and started again from its latest
// checkpoint uses each element exactly once per epoch, as its restored values tell.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/testing/cluster/test_cluster.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using testing::TestCluster;

constexpr int kKills = 2;
constexpr std::int64_t kRows = 600, kBatch = 4, kEpochs = 3;
constexpr int kStepsPerSave = 7;

// A job: servers, which end with this process, and the coordinator.
class CountingJob {
 public:
  explicit CountingJob(const std::string& folder)
      : cluster_({.workers = 2, .ps = 2, .command = {COHORT_COMMAND, "server"}}),
        strategy_(cluster_.resolver()),
        coordinator_(strategy_, {.in_flight_per_worker = 2}),  // so that little is lost
        uses_(strategy_.variable("uses", torch::zeros({kRows}, torch::kLong),
                                 {.is_trainable = false})),
        batches_(
            strategy_.variable("batches", torch::zeros({}, torch::kLong), {.is_trainable = false})),
        data_(coordinator_.distribute_dataset(Dataset::range(kRows).shuffle(kRows).batch(kBatch))),
        manager_(checkpoint_, folder, {.max_to_keep = 2}) {
    checkpoint_.add("data", data_).add("epoch", epoch_).add("saves", saves_);
  }
  // Throws if an element was used more or less often than once in an epoch.
  void train() {
    const Function step([this](Iterator& it) {
      const at::Tensor ids = it.next<at::Tensor>();
      uses_.scatter_add(ids, torch::ones_like(ids));
      batches_.assign_add(torch::ones({}, torch::kLong));
      return ids.sum();
    });
    manager_.restore_latest();
    int steps = 0;
    const auto on_step = [&](const EpochStep&) {
      if (++steps % kStepsPerSave == 0) manager_.save(++saves_);
    };
    for (; epoch_ < kEpochs; ++epoch_) {
      coordinator_.run_epoch(step, data_, {.on_step = on_step});
      check(uses_.read(), epoch_ + 1);
    }
    COHORT_CHECK(batches_.read().item<std::int64_t>() == kEpochs * kRows / kBatch,
                 ErrorCode::internal, "expected each batch once an epoch, got ",
                 batches_.read().item<std::int64_t>());
    manager_.save(++saves_);
  }

 private:
  // After `epochs` whole epochs.
  void check(const at::Tensor& uses, std::int64_t epochs) const {
    COHORT_CHECK(torch::equal(uses, torch::full({kRows}, epochs, torch::kLong)),
                 ErrorCode::internal, "expected all elements ", epochs, " times, got ", uses.min(),
                 " to ", uses.max(), " times");
  }

  TestCluster cluster_;
  ParameterServerStrategy strategy_;
  ClusterCoordinator coordinator_;
  const Variable uses_, batches_;
  const PerWorkerDataset data_;
  std::int64_t epoch_ = 0, saves_ = 0;
  Checkpoint checkpoint_{strategy_};
  CheckpointManager manager_;
};

[[noreturn]] void train_in_child(const std::string& folder) {
  try {
    CountingJob(folder).train();
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
}

bool has_checkpoint_after(std::int64_t save, const std::string& path) {
  if (!std::filesystem::exists(path)) return false;
  return checkpoint::latest_in(path).value_or(0) > save;
}

TEST(ResumedEpoch, UsesEachElementOnceAfterKillsOfTheWholeJob) {
  torch::set_num_threads(1);  // a forked process has no other threads
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("checkpoints");
  std::mt19937 random(5);
  std::int64_t last = 0;
  bool has_ended = false;
  for (int start = 0; start <= kKills && !has_ended; ++start) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) train_in_child(path);
    int status = 0;
    while (start < kKills && !has_ended && !has_checkpoint_after(last, path)) {
      has_ended = ::waitpid(child, &status, WNOHANG) == child;
      ::poll(nullptr, 0, 1);
    }
    if (!has_ended && start < kKills) {
      const Deadline any_moment = Deadline::after(std::chrono::microseconds(random() % 100'000));
      while (!any_moment.has_expired()) ::poll(nullptr, 0, 1);
      ::kill(child, SIGKILL);
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      has_ended = WIFEXITED(status);
    } else if (!has_ended) {
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      has_ended = true;
    }
    if (has_ended) {
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see its message above";
    }
    last = checkpoint::latest_in(path).value_or(0);
  }
  EXPECT_TRUE(has_ended);
  EXPECT_GE(last, kEpochs * kRows / kBatch / kStepsPerSave / 2);
}

}  // namespace
}  // namespace cohort
