// SPDX-License-Identifier: Apache-2.0
// Launches of version 1, whose tasks but ps run the program by themselves: scripts of /bin/sh.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "cohort/cli/launch.h"
#include "cohort/core/error.h"
#include "cohort/testing/temporary_folder.h"
#include "cohort/testing/throws_error.h"

namespace cohort::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// The beginning of every script: the type and the index of the task, and waiting for files.
constexpr const char* kTaskPrelude = R"(
own=${TF_CONFIG##*\"task\":}
type=${own##*\"type\":\"}; type=${type%%\"*}
index=${own##*\"index\":}; index=${index%%[,\}]*}
await() { until [ -e "$dir/$1" ]; do sleep 0.01; done; }
mark() { : >"$dir/$1"; }
)";

class V1LaunchTest : public ::testing::Test {
 protected:
  V1LaunchTest() {
    ::setenv("dir", folder_.file("").c_str(), 1);
    options_ = {.workers = 2,
                .ps = 1,
                .is_v1 = true,
                .has_chief = true,
                .has_evaluator = true,
                .server_command = {"/bin/sh", "-c",
                                   std::string(kTaskPrelude) +
                                       "trap 'mark server_ended; exit 0' TERM; mark serves\n"
                                       "while :; do sleep 0.01; done"},
                .restart_delay = milliseconds(0)};
    options_.out_fd = open_file("out");
    options_.err_fd = open_file("err");
  }
  ~V1LaunchTest() override {
    ::close(options_.out_fd);
    ::close(options_.err_fd);
  }
  int open_file(const std::string& name) const {
    return ::open(folder_.file(name).c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
  }
  LaunchResult run(const std::string& script) {
    options_.program = {"/bin/sh", "-c", std::string(kTaskPrelude) + script};
    return Launch(options_).run();
  }
  bool has(const std::string& file) const { return std::ifstream(folder_.file(file)).good(); }

  const testing::TemporaryFolder folder_;
  LaunchOptions options_;
};

TEST_F(V1LaunchTest, EachTaskButPsRunsTheProgramAndTheServersEndAfterAllOthers) {
  const LaunchResult result =
      run("await serves; echo hello; [ -e $dir/server_ended ] && exit 9; mark $type$index");
  EXPECT_EQ(result.exit_code, 0) << folder_.read("err");
  for (const std::string task : {"chief0", "worker0", "worker1", "evaluator0", "server_ended"})
    EXPECT_TRUE(has(task)) << task;
  EXPECT_THAT(folder_.read("out"), HasSubstr("[chief:0] hello"));
  EXPECT_THAT(folder_.read("out"), HasSubstr("[evaluator:0] hello"));
  for (const TaskReport& task : result.tasks) EXPECT_EQ(task.last_exit.shell_code(), 0);
}

TEST_F(V1LaunchTest, ATaskThatFailsStartsAgainWhileOthersHaveEnded) {
  options_.restarts = 1;
  const LaunchResult result =
      run("if [ $type$index = worker1 ] && [ ! -e $dir/again ]; then\n"
          "  mark again; await chief0; exit 3\n"
          "fi; mark $type$index");
  EXPECT_EQ(result.exit_code, 0) << folder_.read("err");
  EXPECT_TRUE(has("worker1"));
  EXPECT_THAT(folder_.read("err"), HasSubstr("worker:1 ended with exit code 3"));
}

TEST_F(V1LaunchTest, ATaskThatStaysAwayEndsTheJobWithItsCode) {
  options_.restarts = 5;
  options_.restarts_of = {{"worker", 0}};
  const LaunchResult result =
      run("if [ $type$index = worker1 ]; then exit 3; fi; trap 'exit 0' TERM; await never");
  EXPECT_EQ(result.exit_code, 3) << folder_.read("err");
}

TEST_F(V1LaunchTest, AServerThatIsKilledStartsAgain) {
  options_.restarts = 1;
  options_.kills = {{.task = {"ps", 0}, .after = milliseconds(1)}};
  options_.server_command.back() = std::string(kTaskPrelude) +
                                   "trap 'exit 0' TERM; [ -e $dir/once ] && mark twice; mark once\n"
                                   "while :; do sleep 0.01; done";
  const LaunchResult result = run("await twice");
  EXPECT_EQ(result.exit_code, 0) << folder_.read("err");
}

// The others waited for it until their deadline, and the log said that they may go on without it.
TEST_F(V1LaunchTest, AServerThatStaysAwayEndsTheJob) {
  options_.server_command.back() = std::string(kTaskPrelude) + "await trains; exit 3";
  const LaunchResult result = run("mark trains; trap 'exit 0' TERM; await never");
  EXPECT_EQ(result.exit_code, 3) << folder_.read("err");
  EXPECT_THAT(folder_.read("err"),
              HasSubstr("nobody can train without its variables (--restart N"));
}

TEST_F(V1LaunchTest, AServerThatWasEndedAloneStartsAgain) {
  options_.restarts_of = {{"ps", 1}};
  options_.server_command.back() =
      std::string(kTaskPrelude) +
      "trap 'exit 0' TERM; [ -e $dir/once ] && mark twice; mark once; await trains; "
      "[ -e $dir/twice ] || exit 0\n"
      "while :; do sleep 0.01; done";
  const LaunchResult result = run("mark trains; await twice");
  EXPECT_EQ(result.exit_code, 0) << folder_.read("err");
  EXPECT_THAT(folder_.read("err"), HasSubstr("(restart 1 of 1)"));
}

// A process that the launch has not noticed to have ended can still get signals.
TEST_F(V1LaunchTest, AnEvaluatorNeedsNoServer) {
  options_.server_command.back() = std::string(kTaskPrelude) + "await trained; exit 3";
  const LaunchResult result =
      run("if [ $type != evaluator ]; then echo $$ >$dir/$type$index; exit 0; fi\n"
          "for task in chief0 worker0 worker1; do\n"
          "  until [ -s $dir/$task ]; do sleep 0.01; done\n"
          "  while kill -0 $(cat $dir/$task) 2>/dev/null; do sleep 0.01; done\n"
          "done\n"
          "mark trained; until grep -q 'ps:0 ended' $dir/err; do sleep 0.01; done");
  EXPECT_EQ(result.exit_code, 0) << folder_.read("err");
}

TEST_F(V1LaunchTest, TheNumberOfRestartsIsThatOfTheRole) {
  options_.restarts_of = {{"worker", 2}};
  const LaunchResult result =
      run("if [ $type$index = worker1 ]; then exit 3; fi; trap 'exit 0' TERM; await never");
  EXPECT_EQ(result.exit_code, 3) << folder_.read("err");
  EXPECT_THAT(folder_.read("err"), HasSubstr("(restart 2 of 2)"));
  EXPECT_THAT(folder_.read("err"), HasSubstr("no restart left (--restart-of worker=2)"));
}

TEST_F(V1LaunchTest, MistakesAreNamed) {
  const auto refused = [](const std::string& words) {
    return testing::throws_error(ErrorCode::invalid_argument, words);
  };
  LaunchOptions options = options_;
  options.program = {"/bin/sh"};
  options.ps = 0;
  EXPECT_THAT([=] { Launch{options}; }, refused("got --ps 0"));
  options.ps = 1;
  options.restarts_of = {{"wroker", 1}};
  EXPECT_THAT([=] { Launch{options}; }, refused("worker"));
  options.restarts_of = {};
  options.is_v1 = false;
  EXPECT_THAT([=] { Launch{options}; }, refused("add --v1"));
  options.is_v1 = true;
  options.kills = {{.task = {"evaluator", 1}}};
  EXPECT_THAT([=] { Launch{options}; }, refused("evaluator:1"));
}

}  // namespace
}  // namespace cohort::cli
