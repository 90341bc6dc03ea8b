// SPDX-License-Identifier: Apache-2.0
// Runs examples/train_and_resume.cpp on every strategy, whole, and stopped and resumed: the curves
// of synchronous strategies are the same to the last bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "cohort/testing/running_program.h"
#include "cohort/testing/temporary_folder.h"

namespace cohort {
namespace {

using nlohmann::json;
using testing::RunningProgram;
using ::testing::SizeIs;
using testing::TemporaryFolder;
using Words = std::vector<std::string>;

const std::string kDigits = COHORT_SOURCE_DIR "/examples/data/digits";

class TrainAndResume : public testing::LeavesNoProcess,
                       public ::testing::WithParamInterface<std::string> {
 protected:
  static bool has_servers() { return GetParam() == "parameter_server"; }
  static bool is_launched() { return has_servers() || GetParam() == "multi_worker"; }
  // It stops early, or after so many epochs.
  static RunningProgram start(const TemporaryFolder& folder, std::int64_t epochs,
                              std::int64_t patience) {
    Words words;
    if (is_launched())
      words = {COHORT_COMMAND, "launch", "--workers", "2",  "--ps", has_servers() ? "1" : "0",
               "--data",       kDigits,  "--grace",   "60", "--"};
    const Words program{TRAIN_AND_RESUME,
                        "--strategy",
                        GetParam(),
                        "--data-dir",
                        kDigits,
                        "--run-dir",
                        folder.file("run"),
                        "--epochs",
                        std::to_string(epochs),
                        "--patience",
                        std::to_string(patience)};
    words.insert(words.end(), program.begin(), program.end());
    return RunningProgram(std::move(words));
  }
  static constexpr std::int64_t kForever = 100'000;
  static void run(const TemporaryFolder& folder, std::int64_t epochs, std::int64_t patience) {
    RunningProgram program = start(folder, epochs, patience);
    EXPECT_EQ(program.wait().to_string(), "exit code 0") << program.out() << program.err();
  }
  // The points of all curves, as [step, name, value], in the order of the files.
  static std::vector<json> curves_of(const TemporaryFolder& folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder.file("run/logs")))
      if (entry.path().extension() == ".jsonl") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    std::vector<json> points;
    for (const auto& path : files) {
      std::ifstream file(path);
      for (std::string line; std::getline(file, line);) {
        const json point = json::parse(line);
        points.push_back({point.at("step"), point.at("tag"), point.at("value")});
      }
    }
    return points;
  }
  static double last(const std::vector<json>& points, const std::string& name) {
    double value = -1;
    for (const json& point : points)
      if (point[1] == name) value = point[2];
    return value;
  }
};

TEST_P(TrainAndResume, HasTheCurvesOfARunThatWasNotStopped) {
  const TemporaryFolder parts;
  {
    RunningProgram first = start(parts, kForever, kForever);
    ASSERT_TRUE(first.await("epoch 1: ")) << first.out() << first.err();
    first.signal(SIGTERM);
    const std::string code = std::to_string(is_launched() ? 128 + SIGTERM : 75);
    ASSERT_EQ(first.wait().to_string(), "exit code " + code) << first.out() << first.err();
  }
  const auto epochs = static_cast<std::int64_t>(curves_of(parts).size() / 3 + 2);
  run(parts, epochs, kForever);
  const std::vector<json> resumed = curves_of(parts);
  EXPECT_THAT(resumed, SizeIs(static_cast<std::size_t>(3 * epochs)))
      << "an epoch is missing, or came twice";
  if (has_servers()) return;
  const TemporaryFolder folder;
  run(folder, epochs, kForever);
  EXPECT_EQ(resumed, curves_of(folder));
}

TEST_P(TrainAndResume, LearnsDigitsAndStopsEarly) {
  const TemporaryFolder folder;
  run(folder, 1000, 5);
  const std::vector<json> points = curves_of(folder);
  EXPECT_GT(last(points, "accuracy"), 0.9);
  EXPECT_LT(points.size(), 3 * 1000U) << "it did not stop early";
}

// `cohort status` refused a cluster without parameter servers.
class TrainAndAsk : public TrainAndResume {
 protected:
  static json status_of(const RunningProgram& launch, const std::string& timeout) {
    RunningProgram status({COHORT_COMMAND, "status", "--json", "--timeout", timeout, "--launch",
                           std::to_string(launch.pid())});
    status.wait();
    return json::parse(status.out(), nullptr, false);
  }
};

TEST_P(TrainAndAsk, StatusAsksEachWorker) {
  const TemporaryFolder folder;
  RunningProgram launch = start(folder, kForever, kForever);
  ASSERT_TRUE(launch.await("epoch 2: ")) << launch.out() << launch.err();
  const json report = status_of(launch, "60");
  EXPECT_EQ(report["exit_code"], 0) << report.dump(2);
  ASSERT_THAT(report["tasks"], SizeIs(2));
  for (const json& task : report["tasks"]) {
    const json& member = task["member"];
    EXPECT_GT(member["steps"], 40) << report.dump(2);
    EXPECT_GT(member["steps_per_second"], 0);
    EXPECT_EQ(member["workers"], 2);
    EXPECT_GT(member["program"]["step"], 20);
    EXPECT_GT(member["program"]["values"]["loss"], 0) << report.dump(2);
  }
}

TEST_P(TrainAndAsk, StatusNamesAWorkerThatIsSilent) {
  const TemporaryFolder folder;
  RunningProgram launch = start(folder, kForever, kForever);
  ASSERT_TRUE(launch.await("epoch 1: ")) << launch.out() << launch.err();
  std::ifstream children("/proc/" + std::to_string(launch.pid()) + "/task/" +
                         std::to_string(launch.pid()) + "/children");
  pid_t first = 0, second = 0;
  ASSERT_TRUE(children >> first >> second);
  ::kill(second, SIGSTOP);
  const json report = status_of(launch, "1");
  ::kill(second, SIGCONT);
  EXPECT_EQ(report["exit_code"], 69) << report.dump(2);
  EXPECT_EQ(report["tasks"][0]["state"], "answers") << report.dump(2);
  EXPECT_EQ(report["tasks"][1]["task"], "worker:1");
  EXPECT_EQ(report["tasks"][1]["state"], "no_answer") << report.dump(2);
}

INSTANTIATE_TEST_SUITE_P(Workers, TrainAndAsk, ::testing::Values("multi_worker"));

INSTANTIATE_TEST_SUITE_P(Strategies, TrainAndResume,
                         ::testing::Values("one_device", "mirrored", "central_storage",
                                           "multi_worker", "parameter_server"),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace cohort
