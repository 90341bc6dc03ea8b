// SPDX-License-Identifier: Apache-2.0
// The main job as ./dev train starts it, on the digits: checks its summary, and that killing a
// worker during the run does not change it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "cohort/testing/running_program.h"

namespace cohort {
namespace {

using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr int kEpochs = 200;
constexpr int kStepsAnEpoch = 22;  // 1,437 images in batches of 64
constexpr double kAccuracy = 0.94;
const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

struct Summary {
  double accuracy = 0;
  int closures = 0;  // total of all workers
  double pulled_mb = 0;
  double pushed_mb = 0;
};

class MainJob : public testing::LeavesNoProcess {
 protected:
  // `options` are options of `cohort launch`.
  Summary run(const Words& options) {
    Words command{COHORT_COMMAND, "launch", "--workers", "2", "--ps", "2", "--data", kDigits};
    command.insert(command.end(), options.begin(), options.end());
    const Words program_words{"--",         EXAMPLE_PROGRAM, "--data",   "digits",
                              "--data-dir", kDigits,         "--epochs", std::to_string(kEpochs)};
    command.insert(command.end(), program_words.begin(), program_words.end());
    testing::RunningProgram program(std::move(command));
    EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.err();
    err_ = program.err();
    return summary_in(program.out());
  }

  static Summary summary_in(const std::string& out) {
    static const std::regex pattern(
        "test accuracy (\\S+) after \\S+ s\nworker:0 ran (\\d+) closures\nworker:1 ran (\\d+) "
        "closures\n(\\S+) MB pulled, (\\S+) MB pushed, \\d+ retries\n");
    std::smatch parts;
    EXPECT_TRUE(std::regex_match(out, parts, pattern)) << out;
    if (parts.empty()) return {};
    return {std::stod(parts[1]), std::stoi(parts[2]) + std::stoi(parts[3]), std::stod(parts[4]),
            std::stod(parts[5])};
  }

  std::string err_;
};

TEST_F(MainJob, TrainsAndSaysWhatItDid) {
  const Summary summary = run({});
  EXPECT_GT(summary.accuracy, kAccuracy);
  EXPECT_EQ(summary.closures, kEpochs * kStepsAnEpoch);
  // Each step pulls and pushes four bytes per parameter of the network.
  constexpr double kMegabytesAStep = 4.0 * (64 * 128 + 128 + 128 * 10 + 10) / 1e6;
  EXPECT_NEAR(summary.pulled_mb, summary.closures * kMegabytesAStep, 1);
  EXPECT_NEAR(summary.pushed_mb, summary.closures * kMegabytesAStep, 1);
}

TEST_F(MainJob, TrainsAsWellWhenAWorkerIsKilledAndStartsAgain) {
  const Summary summary = run({"--kill", "worker:1@20%", "--restart", "1", "--restart-delay", "0"});
  EXPECT_THAT(err_, HasSubstr("killed worker:1"));
  EXPECT_THAT(err_, HasSubstr("started worker:1 again"));
  EXPECT_GT(summary.accuracy, kAccuracy);
  EXPECT_EQ(summary.closures, kEpochs * kStepsAnEpoch);
}

TEST_F(MainJob, TrainsAsWellWithTheWorkerThatIsLeft) {
  const Summary summary = run({"--kill", "worker:1@20%"});
  EXPECT_THAT(err_, HasSubstr("killed worker:1"));
  EXPECT_GT(summary.accuracy, kAccuracy);
  EXPECT_EQ(summary.closures, kEpochs * kStepsAnEpoch);
}

}  // namespace
}  // namespace cohort
