// SPDX-License-Identifier: Apache-2.0
// A process that is killed while it saves leaves a whole checkpoint: the one that it saved before,
// or the new one.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/core/clock.h"
#include "cohort/optimizer/optimizers.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

constexpr int kKills = 50;
constexpr std::int64_t kElements = 200'000;

// A value that says at which step it was saved, with slots that do, too.
class Saved {
 public:
  explicit Saved(const std::string& folder)
      : value_(local_variable("value", torch::zeros({kElements}))),
        sgd_({value_}, {.learning_rate = 1, .momentum = 0}),
        manager_(checkpoint_, folder, {.max_to_keep = 2}) {
    checkpoint_.add(value_).add("step", step_);
  }
  // Saves until the process is killed.
  [[noreturn]] void save_for_ever() {
    while (true) {
      ++step_;
      sgd_.minimize(-value_.tensor().sum());  // adds 1
      manager_.save(step_);
    }
  }
  std::int64_t restore() {
    if (!manager_.restore_latest()) return 0;
    EXPECT_TRUE(torch::equal(value_.read(),
                             torch::full({kElements}, static_cast<double>(step_), torch::kFloat)));
    EXPECT_EQ(sgd_.iterations(), step_);
    return step_;
  }

 private:
  const Variable value_;
  const SGD sgd_;
  std::int64_t step_ = 0;
  Checkpoint checkpoint_;
  CheckpointManager manager_;
};

bool has_saved_after(std::int64_t step, const std::string& path) {
  if (!std::filesystem::exists(path)) return false;
  return checkpoint::latest_in(path).value_or(0) > step;
}

TEST(KilledSave, LeavesAWholeCheckpoint) {
  torch::set_num_threads(1);  // a forked process has no other threads
  const testing::TemporaryFolder folder;
  const std::string path = folder.file("checkpoints");
  std::mt19937 random(7);
  std::int64_t last = 0;
  for (int kill = 0; kill < kKills; ++kill) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      Saved saved(path);
      saved.restore();
      saved.save_for_ever();
    }
    while (!has_saved_after(last, path)) {
      ASSERT_EQ(::waitpid(child, nullptr, WNOHANG), 0) << "it has ended by itself";
      ::poll(nullptr, 0, 1);
    }
    const Deadline any_moment = Deadline::after(std::chrono::microseconds(random() % 30'000));
    while (!any_moment.has_expired()) ::poll(nullptr, 0, 0);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const std::int64_t step = Saved(path).restore();
    EXPECT_GT(step, last);
    last = step;
  }
  for (const auto& entry : std::filesystem::directory_iterator(path))
    EXPECT_EQ(entry.path().string().find(".partial-"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace cohort
