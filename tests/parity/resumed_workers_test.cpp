// SPDX-License-Identifier: Apache-2.0
// Two processes that are killed at a random moment and start again from their latest checkpoint
// have the bits of two that were never stopped.
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cohort/checkpoint_files/kept_checkpoints.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/worker_config.h"
#include "cohort/variable/saved_values.h"

namespace cohort {
namespace {

using testing::RunningProgram;

class ResumedWorkers : public testing::LeavesNoProcess,
                       public ::testing::WithParamInterface<const char*> {
 protected:
  struct Job {
    std::vector<rpc::ReservedPort> ports = std::vector<rpc::ReservedPort>(2);
    std::vector<std::unique_ptr<RunningProgram>> programs = {};
  };

  Job start(const std::string& checkpoints, const std::string& file) const {
    Job job;
    for (int i = 0; i < 2; ++i) {
      const std::string config = testing::tf_config_of(testing::loopback_addresses(job.ports), i);
      job.programs.push_back(std::make_unique<RunningProgram>(
          std::vector<std::string>{RESUMED_WORKER, GetParam(), checkpoints, file},
          std::vector<std::pair<std::string, std::string>>{{"TF_CONFIG", config},
                                                           {"OMP_NUM_THREADS", "1"}}));
    }
    return job;
  }
  static void finish(const Job& job) {
    for (const auto& program : job.programs)
      EXPECT_EQ(program->wait().to_string(), "exit code 0") << program->err();
  }
  static bool has_saved(const std::string& checkpoints) {
    return std::filesystem::exists(checkpoints) &&
           checkpoint::latest_in(checkpoints).value_or(0) > 0;
  }

  const testing::TemporaryFolder folder_;
};

TEST_P(ResumedWorkers, HaveTheBitsOfThoseThatNeverStopped) {
  const std::string whole_file = folder_.file("whole.safetensors");
  finish(start(folder_.file("whole"), whole_file));
  const std::string checkpoints = folder_.file("killed"), file = folder_.file("killed.safetensors");
  {
    const Job killed = start(checkpoints, file);
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!has_saved(checkpoints)) {
      ASSERT_FALSE(deadline.has_expired());
      ::poll(nullptr, 0, 1);
    }
    const Deadline any_moment =
        Deadline::after(std::chrono::milliseconds(std::mt19937(std::random_device()())() % 40));
    while (!any_moment.has_expired()) ::poll(nullptr, 0, 1);
    for (const auto& program : killed.programs) program->signal(SIGKILL);
    for (const auto& program : killed.programs) program->wait();
  }
  finish(start(checkpoints, file));
  const SavedValues expected(whole_file), got(file);
  EXPECT_EQ(expected.keys(), got.keys());
  for (const std::string& key : expected.keys())
    EXPECT_TRUE(at::equal(expected.value(key), got.value(key))) << key;
}

INSTANTIATE_TEST_SUITE_P(Optimizers, ResumedWorkers, ::testing::Values("adam", "torch"));

}  // namespace
}  // namespace cohort
