// SPDX-License-Identifier: Apache-2.0
// Clusters of version 1 whose tasks are killed at random moments and start again.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/test_seed.h"

namespace cohort {
namespace {

using Words = std::vector<std::string>;
const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

class V1Loss : public testing::LeavesNoProcess {
 protected:
  // Kills each of these tasks once, at a random moment of the first seconds.
  void kill(const Words& tasks) {
    std::uniform_real_distribution<double> moment(0.5, 4);
    for (const std::string& task : tasks) {
      kills_.push_back("--kill");
      kills_.push_back(task + "@" + std::to_string(moment(random_)));
    }
  }
  // The accuracy that an evaluator printed last; 0: none.
  static double last_accuracy(std::string out) {
    const std::regex line("test accuracy ([0-9.]+) at step");
    double accuracy = 0;
    for (std::smatch last; std::regex_search(out, last, line); out = last.suffix())
      accuracy = std::stod(last[1]);
    return accuracy;
  }
  testing::RunningProgram train(const std::string& steps) {
    return launch({"--evaluator"}, {MNIST_V1, "--data-dir", kDigits, "--run-dir",
                                    folder_.file("run"), "--steps", steps});
  }
  testing::RunningProgram launch(const Words& roles, const Words& program) {
    Words command{COHORT_COMMAND, "launch",          "--v1", "--workers", "2", "--ps", "2",
                  "--chief",      "--restart-delay", "0.1",  "--restart", "20"};
    command.insert(command.end(), roles.begin(), roles.end());
    command.insert(command.end(), kills_.begin(), kills_.end());
    command.push_back("--");
    command.insert(command.end(), program.begin(), program.end());
    return testing::RunningProgram(std::move(command));
  }

  const testing::TestSeed seed_;
  std::mt19937 random_{seed_.value()};
  Words kills_;
  const testing::TemporaryFolder folder_;
};

std::uintmax_t size_of(const std::string& path) {
  std::error_code none;
  const std::uintmax_t size = std::filesystem::file_size(path, none);
  return none ? 0 : size;
}

// A step that was sent and not confirmed before the kill may count, and no other may be missing or
// count twice.
TEST_F(V1Loss, StepsCountExactlyUnderKillsOfTheTasksThatTrain) {
  const Words killed = {"worker:0", "worker:1", "chief:0", "worker:0", "worker:1", "chief:0"};
  kill(killed);
  auto program = launch({}, {V1_WORKER, folder_.file(""), "6000"});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
  std::uintmax_t confirmed = 0;
  double weight = 0;  // which the task that ended last has read after all steps
  for (const std::string task : {"chief:0", "worker:0", "worker:1"}) {
    confirmed += size_of(folder_.file(task));
    weight = std::max(weight, std::stod(folder_.read(task + ".weight")));
  }
  EXPECT_GE(weight, static_cast<double>(confirmed)) << program.err();
  EXPECT_LE(weight, static_cast<double>(confirmed + killed.size())) << program.err();
}

TEST_F(V1Loss, TrainingSurvivesKillsOfEveryRole) {
  const Words all = {"ps:0", "ps:1", "worker:0", "worker:1", "chief:0", "evaluator:0"};
  for (int times = 0; times < 2; ++times) kill(all);
  auto program = train("3000");
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  EXPECT_GT(last_accuracy(program.out()), 0.9) << program.out() << program.err();
}

TEST_F(V1Loss, TheExampleTrainsAsTheOthersDoAndEveryTaskEndsWith0) {
  auto program = train("2000");
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
  EXPECT_EQ(program.err(), "") << "warnings";
  EXPECT_GT(last_accuracy(program.out()), 0.93) << program.out();
}

}  // namespace
}  // namespace cohort
