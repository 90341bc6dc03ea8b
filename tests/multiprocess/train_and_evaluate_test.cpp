// SPDX-License-Identifier: Apache-2.0
// Runs examples/train_and_evaluate.cpp on every strategy: each task ends with 0, and the last
// checkpoint is evaluated.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using testing::RunningProgram;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

class TrainAndEvaluate : public testing::LeavesNoProcess,
                         public ::testing::WithParamInterface<std::string> {
 protected:
  Words program(std::int64_t steps) const {
    return {TRAIN_AND_EVALUATE, "--strategy",          GetParam(),    "--data-dir",         kDigits,
            "--model-dir",      folder_.file("model"), "--max-steps", std::to_string(steps)};
  }
  RunningProgram start(std::int64_t steps, const Words& further = {}) const {
    Words words;
    const bool has_servers = GetParam() == "parameter_server";
    if (GetParam() == "v1") {
      words = {COHORT_COMMAND, "launch", "--v1",    "--workers",  "2",
               "--ps",         "2",      "--chief", "--evaluator"};
      words.insert(words.end(), further.begin(), further.end());
      words.push_back("--");
    }
    if (has_servers || GetParam() == "multi_worker")
      words = {COHORT_COMMAND, "launch", "--workers", "2",  "--ps", has_servers ? "1" : "0",
               "--data",       kDigits,  "--grace",   "60", "--"};
    for (const std::string& word : program(steps)) words.push_back(word);
    return RunningProgram(std::move(words), {{"COHORT_LOG_LEVEL", "info"}});
  }
  // The evaluator is no part of the cluster.
  RunningProgram start_evaluator(std::int64_t steps) const {
    return RunningProgram(
        program(steps),
        {{"TF_CONFIG",
          R"({"cluster": {"worker": ["h:1", "h:2"]}, "task": {"type": "evaluator", "index": 0}})"}});
  }
  // The accuracy that the program prints in the end.
  static double accuracy(const std::string& out) {
    const std::string words = ": accuracy ";
    const std::size_t at = out.rfind(words);
    return at == std::string::npos ? -1 : std::stod(out.substr(at + words.size()));
  }
  // The step of the latest checkpoint; -1: there is none.
  std::int64_t latest_step() const {
    std::int64_t latest = -1;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.file("model"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with("step-") && name.find('.') == std::string::npos)
        latest = std::max<std::int64_t>(latest, std::stoll(name.substr(5)));
    }
    return latest;
  }
  static void expect_success(RunningProgram& program) {
    EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  }
  TemporaryFolder folder_;
};

TEST_P(TrainAndEvaluate, LearnsDigitsAndEvaluatesTheEnd) {
  const bool has_evaluator = GetParam() == "multi_worker";
  RunningProgram job = start(1000);
  if (has_evaluator) {
    RunningProgram evaluator = start_evaluator(1000);
    expect_success(evaluator);
    EXPECT_THAT(evaluator.out(), HasSubstr("step 1000: "));
    EXPECT_GT(accuracy(evaluator.out()), 0.9);
    expect_success(job);
    EXPECT_EQ(accuracy(job.out()), -1) << "workers evaluate nothing: " << job.out();
  } else {
    expect_success(job);
    // Independent workers may make a few more steps meanwhile.
    EXPECT_THAT(job.out(), HasSubstr("step 100")) << job.err();
    EXPECT_GT(accuracy(job.out()), 0.9);
  }
  EXPECT_TRUE(std::filesystem::exists(folder_.file("model/export/best/best.json")));
}

TEST_P(TrainAndEvaluate, GoesOnAfterItWasKilled) {
  {
    RunningProgram job = start(100'000'000);
    ASSERT_TRUE(job.await_error("step = 50")) << job.err();
    // Independent workers may be at this step before the chief has saved an earlier one.
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (latest_step() < 200 && !deadline.has_expired()) ::poll(nullptr, 0, 10);
    job.signal(SIGTERM);
    job.wait();
  }
  const std::int64_t latest = latest_step();
  ASSERT_GE(latest, 200);
  RunningProgram again = start(latest + 100);
  expect_success(again);
  EXPECT_GE(latest_step(), latest + 100);
  EXPECT_LE(latest_step(), latest + 110) << "it began at step 0";
}

// Each task is killed while the others go on.
class TrainAndEvaluateUnderKills : public TrainAndEvaluate {};

TEST_P(TrainAndEvaluateUnderKills, EveryRoleGoesOn) {
  RunningProgram job =
      start(6000, {"--restart", "20", "--restart-delay", "0.1", "--kill", "worker:0@3", "--kill",
                   "evaluator:0@4", "--kill", "chief:0@5", "--kill", "ps:1@7"});
  expect_success(job);
  EXPECT_GT(accuracy(job.out()), 0.9);
  EXPECT_GE(latest_step(), 6000);
}

INSTANTIATE_TEST_SUITE_P(Version1, TrainAndEvaluateUnderKills, ::testing::Values("v1"));

INSTANTIATE_TEST_SUITE_P(Strategies, TrainAndEvaluate,
                         ::testing::Values("one_device", "mirrored", "central_storage",
                                           "multi_worker", "parameter_server", "v1"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace cohort
