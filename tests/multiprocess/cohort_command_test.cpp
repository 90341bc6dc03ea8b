// SPDX-License-Identifier: Apache-2.0
// Runs the `cohort` command as a shell does: exit codes, messages, signals, no process left.
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include <csignal>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/local_cluster.h"
#include "cohort/testing/await_server.h"
#include "cohort/testing/running_program.h"

namespace cohort::cli {
namespace {

using ::testing::HasSubstr;

// A running `cohort …`.
class RunningCommand : public testing::RunningProgram {
 public:
  explicit RunningCommand(std::vector<std::string> words, const std::string& tf_config = "")
      : RunningProgram(with_program(std::move(words)), {{"TF_CONFIG", tf_config}}) {}

 private:
  static std::vector<std::string> with_program(std::vector<std::string> words) {
    words.insert(words.begin(), COHORT_COMMAND);
    return words;
  }
};

using CohortServer = testing::LeavesNoProcess;
using CohortLaunch = testing::LeavesNoProcess;

TEST_F(CohortServer, ServesUntilItIsTold) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  RunningCommand server({"server", "--json"}, cluster.tf_config({"ps", 0}));
  EXPECT_TRUE(server.await("\"serving\"")) << server.err();
  EXPECT_THAT(server.out(), HasSubstr(cluster.address({"ps", 0})));
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait().to_string(), "exit code 0");
}

// SIGPIPE killed it at its first line of output: `cohort server 2>&1 | true`.
TEST_F(CohortServer, OutputThatNobodyReadsDoesNotEndIt) {
  testing::RunningProgram shell({"bash", "-c",
                                 "f=$(mktemp -u); mkfifo $f; exec 3<>$f 4>$f 3<&-; rm $f; "
                                 "\"$0\" server --nonsense 2>&4; echo code $?",
                                 COHORT_COMMAND});
  EXPECT_EQ(shell.wait().to_string(), "exit code 0");
  EXPECT_EQ(shell.out(), "code 64\n");
}

#ifdef EARLY_INTERRUPT  // the runtime of a sanitizer must be loaded first
// The signal ended it, while libraries were starting.
TEST_F(CohortLaunch, AnInterruptInItsFirstMomentsHasTheExitCodeOfALaterOne) {
  testing::RunningProgram launch({COHORT_COMMAND, "launch", "--workers", "1", "--", "true"},
                                 {{"LD_PRELOAD", EARLY_INTERRUPT}});
  EXPECT_EQ(launch.wait().to_string(), "exit code 130");
}
#endif

// If the output of --help, --dry-run or --json could not be written, the exit code was still 0.
TEST_F(CohortLaunch, OutputThatCannotBeWrittenIsAnError) {
  for (const char* words : {"--help", "launch --help", "launch --dry-run -- true",
                            "launch --json --workers 1 -- true"}) {
    testing::RunningProgram full(
        {"/bin/sh", "-c", std::string("\"$0\" ") + words + " >/dev/full", COHORT_COMMAND});
    EXPECT_EQ(full.wait().to_string(), "exit code 75") << words;
    EXPECT_THAT(full.err(), HasSubstr("No space left on device")) << words;
    testing::RunningProgram closed(
        {"bash", "-c",
         std::string("f=$(mktemp -u); mkfifo $f; exec 3<>$f 4>$f 3<&-; rm $f; \"$0\" ") + words +
             " >&4",
         COHORT_COMMAND});
    EXPECT_EQ(closed.wait().to_string(), "exit code 75") << words;
    EXPECT_THAT(closed.err(), HasSubstr("Broken pipe")) << words;
  }
}

// It went on without a word, and ended with exit code 0.
TEST_F(CohortServer, AFirstLineThatCannotBeWrittenIsAnErrorAtItsEnd) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  testing::RunningProgram server({"/bin/sh", "-c", "exec \"$0\" server >/dev/full", COHORT_COMMAND},
                                 {{"TF_CONFIG", cluster.tf_config({"ps", 0})}});
  EXPECT_TRUE(server.await_error("No space left on device")) << server.err();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait().to_string(), "exit code 75");
}

TEST(CohortStatus, OutputThatCannotBeWrittenIsAnError) {
  for (const char* words : {"", " --json"}) {
    testing::RunningProgram status(
        {"/bin/sh", "-c",
         std::string("exec \"$0\" status --cluster 127.0.0.1:1") + words + " >/dev/full",
         COHORT_COMMAND});
    EXPECT_EQ(status.wait().to_string(), "exit code 75") << words;
    EXPECT_THAT(status.err(), HasSubstr("No space left on device")) << words;
  }
}

// Its sockets got these numbers.
TEST_F(CohortServer, StreamsThatAreClosedAreNothing) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  testing::RunningProgram server(
      {"/bin/sh", "-c", "exec \"$0\" server <&- >&- 2>&-", COHORT_COMMAND},
      {{"TF_CONFIG", cluster.tf_config({"ps", 0})}});
  ASSERT_TRUE(testing::await_answer(ClusterSpec{{"ps", {cluster.address({"ps", 0})}}}, "ps:0"));
  for (const char* fd : {"0", "1", "2"}) {
    const auto link = "/proc/" + std::to_string(server.pid()) + "/fd/" + fd;
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null") << fd;
  }
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait().to_string(), "exit code 0");
}

// It ended with 64, so that no supervisor started it again, though its predecessor was only ending.
TEST_F(CohortServer, ItsPortThatAnotherProcessHasIsNoUsageError) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  RunningCommand first({"server"}, cluster.tf_config({"ps", 0}));
  ASSERT_TRUE(first.await("serves at")) << first.err();
  RunningCommand second({"server"}, cluster.tf_config({"ps", 0}));
  EXPECT_EQ(second.wait().to_string(), "exit code 75");
  EXPECT_THAT(second.err(), HasSubstr("another process listens there"));
}

#ifndef __SANITIZE_ADDRESS__  // UndefinedBehaviorSanitizer opens a pipe to look at an object's type
// gRPC aborted it; or it served, and could not accept the connections of its coordinator.
TEST_F(CohortServer, WithTooFewDescriptorsSaysWhatToRaise) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
  for (const char* limit : {"6", "8", "14"}) {
    testing::RunningProgram server(
        {"/bin/sh", "-c", "ulimit -n $1; exec \"$0\" server", COHORT_COMMAND, limit},
        {{"TF_CONFIG", cluster.tf_config({"ps", 0})}});
    EXPECT_EQ(server.wait().to_string(), "exit code 75") << limit;
    EXPECT_THAT(server.err(), HasSubstr("raise this process's limit of open files (ulimit -n)"))
        << limit;
  }
}
#endif

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they reserve more than this
// It printed its sentence, and then waited forever for threads of OpenBLAS.
TEST_F(CohortServer, WithTooLittleMemorySaysWhatToRaiseAndEnds) {
  const LocalCluster cluster({.workers = 1, .ps = 1});
#if TORCH_VERSION_MAJOR >= 2  // takes less
  const std::vector<std::string> limits = {"450000", "550000", "600000", "620000"};
#else
  const std::vector<std::string> limits = {"600000", "650000", "660000", "680000"};
#endif
  for (const std::string& limit : limits) {
    testing::RunningProgram server(
        {"/bin/sh", "-c", "ulimit -v $1; exec \"$0\" server", COHORT_COMMAND, limit},
        {{"TF_CONFIG", cluster.tf_config({"worker", 0})}});
    EXPECT_EQ(server.wait().to_string(), "exit code 75") << limit;
    EXPECT_THAT(server.err(), HasSubstr("ulimit -v")) << limit;
  }
}
#endif

#ifndef __SANITIZE_ADDRESS__  // as above
TEST(CohortStatus, WithTooFewDescriptorsSaysWhatToRaise) {
  testing::RunningProgram status(
      {"/bin/sh", "-c", "ulimit -n 6; exec \"$0\" status --cluster 127.0.0.1:1", COHORT_COMMAND});
  EXPECT_EQ(status.wait().to_string(), "exit code 75");
  EXPECT_THAT(status.err(), HasSubstr("raise this process's limit of open files (ulimit -n)"));
}
#endif

// Ends with 0 where no name server answers.
constexpr const char* kAsksForAName =
    "import socket, sys\n"
    "try: socket.getaddrinfo('host.invalid', 1)\n"
    "except socket.gaierror as error: sys.exit(error.errno != socket.EAI_AGAIN)\n"
    "sys.exit(1)\n";

// Returns a prefix that runs a command without an answering name server (EAI_AGAIN); nothing if
// this system cannot do that.
std::optional<std::string> without_name_servers() {
  for (const char* prefix : {"", "unshare -n ", "unshare -rn "}) {
    testing::RunningProgram python(
        {"/bin/sh", "-c", std::string("exec ") + prefix + "python3 -c \"$0\"", kAsksForAName});
    if (python.wait().to_string() == "exit code 0") return prefix;
  }
  return std::nullopt;
}

class WithoutNameServers : public testing::LeavesNoProcess {
 protected:
  void SetUp() override {
    if (!prefix_) GTEST_SKIP() << "needs a network of its own (unshare -n)";
  }
  testing::RunningProgram start(const std::string& words, const std::string& tf_config) const {
    return testing::RunningProgram(
        {"/bin/sh", "-c", "exec " + prefix_.value_or("") + "\"$0\" " + words, COHORT_COMMAND},
        {{"TF_CONFIG", tf_config}});
  }

  const std::optional<std::string> prefix_ = without_name_servers();
};

// It ended with 64 at once, after which a supervisor does not start it again.
TEST_F(WithoutNameServers, AServerAsksAgainForItsOwnAddress) {
  auto server = start("server", R"({"cluster": {"worker": ["host.invalid:4000"],
      "ps": ["127.0.0.1:3"]}, "task": {"type": "worker", "index": 0}})");
  EXPECT_TRUE(server.await_error("the address of host 'host.invalid'")) << server.err();
  EXPECT_TRUE(server.await_error("worker:0 asks again")) << server.err();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait().to_string(), "exit code 0");
}

// It was "nobody listens", as if the task were not there.
TEST_F(WithoutNameServers, StatusSaysThatANameWasNotResolved) {
  auto status = start("status --cluster host.invalid:4000", "");
  EXPECT_EQ(status.wait().to_string(), "exit code 69");
  EXPECT_THAT(status.out(), HasSubstr("host.invalid:4000  name not resolved"));
  EXPECT_THAT(status.out(), HasSubstr("see whether name resolution"));
}

TEST_F(CohortLaunch, LinesOfServersThatCannotBeWrittenAreAnErrorAtTheEnd) {
  const std::string mark = ::testing::TempDir() + "written_" + std::to_string(::getpid());
  const std::string program =
      "case $TF_CONFIG in *'\"type\":\"chief\"'*) until [ -e $mark ]; do sleep 0.01; done;; "
      "*) echo line; : >$mark; exec tail -f /dev/null;; esac";
  testing::RunningProgram launch(
      {"/bin/sh", "-c", "\"$0\" launch --workers 1 --ps 1 -- /bin/sh -c \"$1\" >/dev/full",
       COHORT_COMMAND, program},
      {{"mark", mark}});
  EXPECT_EQ(launch.wait().to_string(), "exit code 75");
  EXPECT_THAT(launch.err(), HasSubstr("a line of a server could not be written: No space left"));
  EXPECT_EQ(::unlink(mark.c_str()), 0);
}

TEST_F(CohortServer, WithoutAnEnvironmentSaysWhatIsUnset) {
  testing::RunningProgram server(
      {"/bin/sh", "-c", "unset TF_CONFIG; exec \"$0\" server", COHORT_COMMAND});
  EXPECT_EQ(server.wait().to_string(), "exit code 64");
  EXPECT_THAT(server.err(), HasSubstr("TF_CONFIG, which is unset"));
}

TEST_F(CohortLaunch, CtrlCEndsAllAndIs130) {
  RunningCommand launch({"launch", "--workers", "1", "--ps", "1", "--", "sh", "-c",
                         "sleep 1000 & echo $$; exec sleep 1000"});
  ASSERT_TRUE(launch.await("[worker:0] ")) << launch.err();
  launch.signal(SIGINT);
  EXPECT_EQ(launch.wait().to_string(), "exit code 130");
}

TEST_F(CohortLaunch, WithoutParameterServersStatusNamesWorkersThatDoNotListen) {
  RunningCommand launch({"launch", "--workers", "2", "--ps", "0", "--", "sh", "-c",
                         "echo $TF_CONFIG; exec sleep 1000"});
  ASSERT_TRUE(launch.await("[worker:1] {\"cluster\":{\"worker\":[")) << launch.err();
  testing::RunningProgram status(
      {COHORT_COMMAND, "status", "--launch", std::to_string(launch.pid())});
  EXPECT_EQ(status.wait().to_string(), "exit code 69");
  for (const char* const worker : {"worker:0", "worker:1"})
    EXPECT_THAT(status.out(), HasSubstr(std::string(worker) + ": nobody listens: "));
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait().to_string(), "exit code 143");
}

TEST_F(CohortLaunch, StandardServersServeAProgramWithoutThem) {
  RunningCommand launch(
      {"launch", "--workers", "1", "--ps", "1", "--", "sh", "-c",
       "case $TF_CONFIG in *'\"type\":\"chief\"'*) sleep 1000;; *) exec \"$0\" server;; esac",
       COHORT_COMMAND});
  EXPECT_TRUE(launch.await("[worker:0] worker:0 serves at 127.0.0.1:")) << launch.err();
  EXPECT_TRUE(launch.await("[ps:0] ps:0 serves at 127.0.0.1:")) << launch.err();
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait().to_string(), "exit code 143");
}

// `nohup cohort launch` ended when its terminal was closed.
TEST_F(CohortLaunch, SignalsThatWereIgnoredStayIgnored) {
  const std::string program =
      "case $TF_CONFIG in *'\"type\":\"chief\"'*) kill -HUP $PPID; kill -HUP $$; exit 7;; "
      "*) exec tail -f /dev/null;; esac";
  testing::RunningProgram launch(
      {"/bin/sh", "-c", "trap '' HUP; exec \"$0\" launch --workers 1 --ps 1 -- /bin/sh -c \"$1\"",
       COHORT_COMMAND, program});
  EXPECT_EQ(launch.wait().to_string(), "exit code 7");
}

// Tests did not notice a launch that left its chief running, since they killed its process group.
TEST_F(CohortLaunch, WhatAProgramLeavesInItsGroupFailsATest) {
  testing::RunningProgram program({"/bin/sh", "-c", "tail -f /dev/null >/dev/null 2>&1 & exit 0"});
  EXPECT_NONFATAL_FAILURE(program.wait(), "left running by the program");
  ::waitpid(-1, nullptr, 0);  // reaps the killed process, which this process adopted
}

}  // namespace
}  // namespace cohort::cli
