// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/cli/commands.h"
#include "cohort/testing/launcher_environment.h"

namespace cohort::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::LauncherEnvironment;

class ConfigCommandTest : public ::testing::Test {
 protected:
  // Returns the standard output of the command.
  static std::string config(std::vector<const char*> words, int exit_code = 0) {
    words.insert(words.begin(), {"cohort", "config"});
    ::testing::internal::CaptureStdout();
    EXPECT_EQ(run(static_cast<int>(words.size()), words.data()), exit_code);
    return ::testing::internal::GetCapturedStdout();
  }

  LauncherEnvironment environment_;
};

TEST_F(ConfigCommandTest, ShowsEachValueAndWhereItComesFrom) {
  LauncherEnvironment::set(
      {{"TF_CONFIG",
        R"({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}})"}});
  const std::string text = config({});
  EXPECT_THAT(text, ContainsRegex("resolver +tf_config +TF_CONFIG is set"));
  EXPECT_THAT(text, ContainsRegex("task +worker:1 +resolver tf_config"));
  EXPECT_THAT(text, ContainsRegex("worker:0 +a:1 +resolver tf_config"));
  EXPECT_THAT(text, ContainsRegex("COHORT_METRICS +0 +default"));
}

TEST_F(ConfigCommandTest, PrintsOneLineOfJson) {
  LauncherEnvironment::set({{"SLURM_PROCID", "0"},
                            {"SLURM_STEP_NUM_TASKS", "2"},
                            {"SLURM_STEP_NODELIST", "n[1-2]"},
                            {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                            {"COHORT_TASKS", "chief=1,worker=1"}});
  const auto line = nlohmann::json::parse(config({"--json"}));
  EXPECT_EQ(line.at("resolver"), "slurm");
  EXPECT_EQ(line.at("cause"), "SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(line.at("cluster").at("chief"), nlohmann::json({"n1:8888"}));
  bool has_tasks = false;
  for (const auto& value : line.at("values"))
    has_tasks =
        has_tasks || (value.at("name") == "COHORT_TASKS" && value.at("from") == "environment");
  EXPECT_TRUE(has_tasks) << line.dump(2);
}

TEST_F(ConfigCommandTest, DoesNotWaitForOthersIfItShallNot) {
  LauncherEnvironment::set(
      {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}});
  EXPECT_THAT(config({"--no-wait"}), ContainsRegex("task +worker:1 +resolver torchrun"));
  EXPECT_TRUE(nlohmann::json::parse(config({"--no-wait", "--json"})).at("cluster").is_null());
}

TEST_F(ConfigCommandTest, WithoutAClusterSaysSo) {
  EXPECT_THAT(config({}), ContainsRegex("resolver +none +default: no variables"));
  EXPECT_EQ(nlohmann::json::parse(config({"--json"})).at("cluster"), nlohmann::json::object());
}

TEST_F(ConfigCommandTest, SaysWhichJobItIs) {
  const LauncherEnvironment::Variables cluster = {{"TF_CONFIG", R"({"cluster": {"ps": ["a:1"]}})"}};
  LauncherEnvironment::set(cluster);
  EXPECT_THAT(config({}), ContainsRegex("job_id +[^ ]+ +a hash of the cluster"));
  LauncherEnvironment::set({{"COHORT_JOB_ID", "mine"}});
  EXPECT_THAT(config({}), ContainsRegex("job_id +mine +COHORT_JOB_ID"));
}

TEST_F(ConfigCommandTest, RefusesWhatIsWrong) {
  LauncherEnvironment::set({{"COHORT_CLUSTER_RESOLVER", "k8s"}});
  EXPECT_THAT(config({"--json"}, 64), HasSubstr("expected COHORT_CLUSTER_RESOLVER"));
  LauncherEnvironment::clear();
  EXPECT_THAT(config({"--json", "--", "program"}, 64), HasSubstr("expected no program"));
}

}  // namespace
}  // namespace cohort::cli
