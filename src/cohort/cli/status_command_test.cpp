// SPDX-License-Identifier: Apache-2.0
// Which tasks `cohort status` asks; tests/multiprocess/status_test.cpp asks real ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/cli/commands.h"
#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/launcher_environment.h"

namespace cohort::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::LauncherEnvironment;

class StatusCommandTest : public ::testing::Test {
 protected:
  // Returns the standard output of the command.
  static std::string status(int exit_code) {
    const std::vector<const char*> words = {"cohort", "status", "--json"};
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run(static_cast<int>(words.size()), words.data()), exit_code);
    return ::testing::internal::GetCapturedStdout();
  }

  LauncherEnvironment environment_;
};

// Regression: it read TF_CONFIG alone.
TEST_F(StatusCommandTest, AsksTheClusterOfASlurmStep) {
  const rpc::ReservedPort port;
  LauncherEnvironment::set({{"SLURM_PROCID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "1"},
                            {"SLURM_STEP_NODELIST", "localhost"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1"},
                            {"COHORT_PORT_BASE", std::to_string(port.number())}});
  const auto line = nlohmann::json::parse(status(69));
  ASSERT_EQ(line.at("tasks").size(), 1U) << line.dump(2);
  EXPECT_EQ(line["tasks"][0]["address"], "localhost:" + std::to_string(port.number()));
  EXPECT_EQ(line["tasks"][0]["state"], "nobody_listens");
}

TEST_F(StatusCommandTest, RefusesAClusterWithOtherAddressesAtEachStart) {
  LauncherEnvironment::set(
      {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}});
  EXPECT_THAT(status(64), AllOf(HasSubstr("torchrun"), HasSubstr("--cluster")));
}

}  // namespace
}  // namespace cohort::cli
