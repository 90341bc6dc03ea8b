// SPDX-License-Identifier: Apache-2.0
// Runs the example projects as their READMEs do, on the repository's data, most of them with two
// workers and one parameter server. Each must reach the accuracy that its README states.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <string>
#include <vector>

#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

using Words = std::vector<std::string>;

const std::string kData = COHORT_SOURCE_DIR "/examples/data/";

class ExampleProjects : public testing::LeavesNoProcess {
 protected:
  static std::string launch(const std::string& data, const Words& program_words) {
    Words command{COHORT_COMMAND, "launch", "--workers", "2", "--ps", "1"};
    if (!data.empty()) command.insert(command.end(), {"--data", data});
    command.push_back("--");
    command.insert(command.end(), program_words.begin(), program_words.end());
    testing::RunningProgram program(std::move(command));
    EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
    const std::regex alone(
        "\\[launch\\] `cohort status --launch [0-9]+` tells how the tasks are\n");
    EXPECT_TRUE(std::regex_match(program.err(), alone)) << "warnings: " << program.err();
    return program.out();
  }
  inline static const Words kSmallLog = {"--clicks", "50000", "--users", "2000",
                                         "--items",  "500",   "--batch", "128"};
  // Six runs on servers, half of them with a lost worker, differed from one process by 0.0013 at
  // most: the clicks are the same, but workers compute from values that are a few steps old.
  static constexpr double kAucTolerance = 0.005;
  static testing::RunningProgram clicks_on_servers(const std::string& folder,
                                                   const Words& launch_words) {
    std::filesystem::create_directories(folder);
    Words command{COHORT_COMMAND, "launch", "--workers", "2", "--ps", "2", "--data", folder};
    command.insert(command.end(), launch_words.begin(), launch_words.end());
    command.insert(command.end(), {"--", WIDE_AND_DEEP, folder});
    command.insert(command.end(), kSmallLog.begin(), kSmallLog.end());
    return testing::RunningProgram(std::move(command));
  }
  // Trains the same model in one process.
  static double auc_of_one_process() {
    Words command{WIDE_AND_DEEP, ::testing::TempDir() + "clicks_one", "--strategy", "one"};
    command.insert(command.end(), kSmallLog.begin(), kSmallLog.end());
    testing::RunningProgram program(std::move(command));
    EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
    return accuracy(program.out(), "AUC");
  }
  // The number after `label` in the last line, or -1 if there is none.
  static double accuracy(const std::string& out, const std::string& label) {
    std::smatch parts;
    const std::regex pattern(label + " ([0-9.]+)\n$");
    return std::regex_search(out, parts, pattern) ? std::stod(parts[1]) : -1;
  }
};

TEST_F(ExampleProjects, TabularTellsPenguinsApartAndStopsEarly) {
  const std::string out = launch(kData + "penguins", {TABULAR, kData + "penguins"});
  EXPECT_GE(accuracy(out, "test accuracy"), 0.95) << out;
  EXPECT_EQ(out.find("epoch 99:"), std::string::npos) << "did not stop early";
}

TEST_F(ExampleProjects, MirroredReplicasLearnDigits) {
  testing::RunningProgram program(
      {MNIST_MIRRORED, "--replicas", "3", "--epochs", "20", "--data-dir", kData + "digits"});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  EXPECT_EQ(program.err(), "");
  EXPECT_GE(accuracy(program.out(), "test accuracy"), 0.9) << program.out();
}

TEST_F(ExampleProjects, WorkersInProcessesLearnDigits) {
  testing::RunningProgram program({COHORT_COMMAND, "launch", "--workers", "2", "--ps", "0", "--",
                                   MNIST_MULTI_WORKER, "--epochs", "20", "--data-dir",
                                   kData + "digits"});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  EXPECT_EQ(program.err(), "");
  const std::regex one_line("\\[worker:0\\] test accuracy (0\\.9[0-9]*|1\\.0*) after [0-9.]+ s\n");
  EXPECT_TRUE(std::regex_match(program.out(), one_line)) << program.out();
}

// The other one goes on, and takes it in again if it has not finished by then.
TEST_F(ExampleProjects, AWorkerThatIsKilledTrainsOn) {
  testing::RunningProgram program({COHORT_COMMAND, "launch", "--workers", "2", "--ps", "0",
                                   "--kill", "worker:1@25%", "--restart", "1", "--",
                                   MNIST_MULTI_WORKER, "--epochs", "200", "--data-dir",
                                   kData + "digits"});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  EXPECT_NE(program.err().find("killed worker:1"), std::string::npos) << program.err();
  const std::regex one_line("\\[worker:0\\] test accuracy (0\\.9[0-9]*|1\\.0*) after [0-9.]+ s\n");
  EXPECT_TRUE(std::regex_match(program.out(), one_line)) << program.out();
}

TEST_F(ExampleProjects, TextReadsSentencesOfAnyLength) {
  const std::string out = launch(kData + "reviews", {TEXT, kData + "reviews"});
  EXPECT_GE(accuracy(out, "test accuracy"), 0.95) << out;
}

TEST_F(ExampleProjects, ARecommenderOnServersIsAsGoodAsInOneProcess) {
  auto program = clicks_on_servers(::testing::TempDir() + "clicks", {});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
  const double alone = auc_of_one_process();
  EXPECT_GE(alone, 0.75);
  EXPECT_NEAR(accuracy(program.out(), "AUC"), alone, kAucTolerance) << program.out();
}

TEST_F(ExampleProjects, ARecommenderThatLosesAWorkerIsAsGoodAsInOneProcess) {
  auto program = clicks_on_servers(::testing::TempDir() + "clicks_kill",
                                   {"--kill", "worker:1@50%", "--restart", "1"});
  EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
  EXPECT_NE(program.err().find("killed worker:1"), std::string::npos) << program.err();
  EXPECT_NE(program.err().find("lost worker:1"), std::string::npos) << program.err();
  EXPECT_NEAR(accuracy(program.out(), "AUC"), auc_of_one_process(), kAucTolerance) << program.out();
}

TEST_F(ExampleProjects, APluginTrainsInALargerProgram) {
  const std::string out = launch("", {PLUGIN_HOST, PLUGIN_TRAINER});
  EXPECT_GE(accuracy(out, "accuracy"), 0.95) << out;
}

}  // namespace
}  // namespace cohort
