// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stop_token>
#include <thread>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The beginning of every task's script: it finds out its task, and can wait for files of others.
constexpr const char* kPrelude = R"(
task=${TF_CONFIG##*\"task\":}
type=${task##*\"type\":\"}; type=${type%%\"*}
index=${task##*\"index\":}; index=${index%%[,\}]*}
await() { for f in "$@"; do until [ -e "$dir/$f" ]; do sleep 0.01; done; done; }
await_text() { until grep -q "$1" "$dir/err"; do sleep 0.01; done; }
mark() { : >"$dir/$1"; }
)";

// Launches scripts of /bin/sh. out() and err() have the output of the servers.
class LaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "launch_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
    ::setenv("dir", dir_.c_str(), 1);
    ::mkfifo(path("events").c_str(), 0600);
    options_.out_fd = ::open(path("out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    options_.err_fd = ::open(path("err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    options_.workers = 2;
    options_.ps = 1;
  }
  void TearDown() override {
    ::close(options_.out_fd);
    ::close(options_.err_fd);
    std::filesystem::remove_all(dir_);
  }

  LaunchOptions& script(const std::string& chief, const std::string& server = "exec sleep 1000") {
    options_.program = {"/bin/sh", "-c",
                        std::string(kPrelude) + "if [ $type = chief ]; then\n" + chief +
                            "\nelse\n" + server + "\nfi"};
    return options_;
  }
  LaunchResult run() { return Launch(options_).run(); }
  // Runs, and requests a stop when a task has written a line to $dir/events.
  LaunchResult run_and_stop(int signal) {
    Launch launch(options_);
    std::thread stopper([&] {
      event();
      launch.request_stop(signal);
    });
    const LaunchResult result = launch.run();
    stopper.join();
    return result;
  }

  std::string event() const {
    std::string line;
    std::getline(std::ifstream(path("events")) >> std::ws, line);
    return line;
  }
  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  std::string text(const std::string& name) const {
    std::ostringstream all;
    all << std::ifstream(path(name)).rdbuf();
    return all.str();
  }
  std::string out() const { return text("out"); }
  std::string err() const { return text("err"); }
  bool runs(const std::string& pid_file) const { return ::kill(std::stoi(text(pid_file)), 0) == 0; }
  static const TaskReport& report(const LaunchResult& result, const TaskId& task) {
    for (const TaskReport& report : result.tasks) {
      if (report.task == task) return report;
    }
    throw Error(ErrorCode::not_found, task.to_string());
  }

  std::string dir_;
  LaunchOptions options_;
};

TEST_F(LaunchTest, EachTaskHasItsOwnTfConfigOfOneCluster) {
  script("await ps0 worker0 worker1; echo \"$TF_CONFIG\" >$dir/chief",
         "echo \"$TF_CONFIG\" >$dir/config.$type$index; mark $type$index; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(text("chief"), HasSubstr(R"("task":{"index":0,"type":"chief"})"));
  EXPECT_THAT(text("config.worker1"), HasSubstr(R"("task":{"index":1,"type":"worker"})"));
  EXPECT_THAT(text("config.ps0"), HasSubstr(R"("task":{"index":0,"type":"ps"})"));
  const auto cluster = [&](const std::string& name) {
    return text(name).substr(0, text(name).find("\"task\""));
  };
  EXPECT_EQ(cluster("chief"), cluster("config.worker1"));
  EXPECT_EQ(cluster("chief"), cluster("config.ps0"));
}

TEST_F(LaunchTest, LinesOfServersBearTheirTask) {
  script("await ps0 worker0 worker1",
         "echo one; printf 'half '; echo two; echo three >&2; printf 'no end'; mark $type$index; "
         "exec sleep 1000");
  run();
  EXPECT_THAT(out(), AllOf(HasSubstr("[ps:0] one\n"), HasSubstr("[worker:1] half two\n"),
                           HasSubstr("[worker:0] no end\n"), Not(HasSubstr("three"))));
  EXPECT_THAT(err(), HasSubstr("[worker:1] three\n"));
}

TEST_F(LaunchTest, DataDirectoriesAndThreadsAreInTheEnvironment) {
  ::unsetenv("OMP_NUM_THREADS");
  script("await worker0; echo \"$COLOUR\" >$dir/chief",
         "echo \"$COHORT_DATA_DIRS:${COLOUR:-none}:$OMP_NUM_THREADS\" >$dir/seen.$type$index; mark "
         "$type$index; sleep 9");
  options_.data_dirs = {dir_};
  options_.chief_environment = {{"COLOUR", "red"}};
  run();
  EXPECT_THAT(
      text("seen.worker0"),
      ::testing::MatchesRegex(std::filesystem::canonical(dir_).string() + ":none:[1-9][0-9]*\n"));
  EXPECT_EQ(text("chief"), "red\n");
}

TEST_F(LaunchTest, AnEmptyNumberOfThreadsCountsAsNone) {
  ::setenv("OMP_NUM_THREADS", "", 1);
  script("await worker0", "echo \"$OMP_NUM_THREADS\" >$dir/seen.$type$index; mark $type$index");
  run();
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_THAT(text("seen.worker0"), ::testing::MatchesRegex("[1-9][0-9]*\n"));
}

TEST_F(LaunchTest, ReturnsTheChiefsExitCode) {
  script("exit 7");
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(report(result, {"chief", 0}).last_exit.code, 7);
}

TEST_F(LaunchTest, AChiefEndedByASignalIs128AndTheSignal) {
  script("kill -KILL $$");
  EXPECT_EQ(run().exit_code, 137);
  EXPECT_THAT(err(), HasSubstr("[launch] the program was ended by SIGKILL (Killed)"));
}

// It ended the launch, although --restart was given and the text of the error said to start again.
TEST_F(LaunchTest, AChiefThatLostATaskStartsAgain) {
  script(
      "echo x >>$dir/starts; [ $(wc -l <$dir/starts) = 1 ] && exit 69\n"
      "[ $(wc -l <$dir/starts) = 2 ] && exit 75; exit 0");
  options_.restarts = 2;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(report(result, {"chief", 0}).starts, 3);
  EXPECT_EQ(report(result, {"worker", 0}).starts, 1);
  EXPECT_THAT(err(), AllOf(HasSubstr("the program ended with exit code 69; it starts again soon "
                                     "(restart 1 of 2)"),
                           HasSubstr("started chief:0 again")));
}

TEST_F(LaunchTest, AChiefWithoutARestartLeftEndsAll) {
  script("exit 69");
  options_.restarts = 1;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 69);
  EXPECT_EQ(report(result, {"chief", 0}).starts, 2);
}

TEST_F(LaunchTest, AChiefThatFailsItselfIsNotStartedAgain) {
  script("exit 70");
  options_.restarts = 1;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 70);
  EXPECT_EQ(report(result, {"chief", 0}).starts, 1);
}

TEST_F(LaunchTest, AChiefThatCannotStartAgainEndsAll) {
  script("await ps0 worker0 worker1; rm -f $dir/program; exit 69",
         "mark $type$index; exec sleep 1000");
  std::ofstream(path("program")) << "#!/bin/sh\n" << options_.program[2];
  ::chmod(path("program").c_str(), 0700);
  options_.program = {path("program")};
  options_.restarts = 1;
  options_.restart_delay = milliseconds(0);
  EXPECT_EQ(run().exit_code, 69);
  EXPECT_THAT(err(), HasSubstr("chief:0 cannot be started again: [cli.launch]"));
}

TEST_F(LaunchTest, TheEndOfTheChiefEndsAllOthers) {
  script("await ps0 worker0 worker1",
         "echo $$ >$dir/pid.$type$index; mark $type$index; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 0);
  for (const char* task : {"pid.ps0", "pid.worker0", "pid.worker1"})
    EXPECT_FALSE(runs(task)) << task;
}

TEST_F(LaunchTest, AStopRequestEndsAllTasks) {
  script("echo $$ >$dir/pid.chief; await worker0; echo ready >$dir/events; exec sleep 1000",
         "echo $$ >$dir/pid.$type$index; mark $type$index; exec sleep 1000");
  EXPECT_EQ(run_and_stop(SIGINT).exit_code, 130);
  EXPECT_FALSE(runs("pid.chief"));
  EXPECT_FALSE(runs("pid.worker0"));
}

// The servers got SIGTERM together with the chief, which could no longer save what they have.
TEST_F(LaunchTest, AStoppedChiefSavesWhileItsServersRun) {
  script(
      "trap 'mark asked; await answer; mark saved; exit 75' TERM\n"
      "await ps0 worker0 worker1; echo ready >$dir/events; while :; do sleep 0.01; done",
      "mark $type$index\n"
      "if [ $type = ps ]; then await asked; mark answer; fi; exec sleep 1000");
  const LaunchResult result = run_and_stop(SIGTERM);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  EXPECT_TRUE(std::filesystem::exists(path("saved")));
  EXPECT_EQ(report(result, {"chief", 0}).last_exit.code, 75);
  EXPECT_EQ(report(result, {"ps", 0}).last_exit.signal, SIGTERM);
}

// Ctrl-C reaches the chief, too: it may end with its own code before the request is read.
TEST_F(LaunchTest, AStopRequestAfterTheChiefHasFailedMakesTheExitCode) {
  script("await ps0 worker0 worker1; exit 75",
         "if [ $type = ps ]; then trap 'echo ended >$dir/events; exec sleep 1000' TERM; fi\n"
         "mark $type$index; while :; do sleep 0.01; done");
  options_.grace = milliseconds(500);
  EXPECT_EQ(run_and_stop(SIGINT).exit_code, 128 + SIGINT);
}

TEST_F(LaunchTest, AStoppedLaunchStartsNothingAgain) {
  script("trap 'exit 75' TERM; echo ready >$dir/events; while :; do sleep 0.01; done");
  options_.restarts = 5;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run_and_stop(SIGTERM);
  EXPECT_EQ(result.exit_code, 128 + SIGTERM);
  for (const TaskReport& task : result.tasks) EXPECT_EQ(task.starts, 1) << task.task.to_string();
}

// `timeout` sends its signal twice: to the process and to its group.
TEST_F(LaunchTest, ASignalSentTwiceIsOneRequest) {
  script("exec sleep 1000", "trap 'exit 0' TERM; while :; do sleep 0.01; done");
  Launch launch(options_);
  launch.request_stop(SIGTERM);
  launch.request_stop(SIGTERM);
  EXPECT_EQ(launch.run().exit_code, 128 + SIGTERM);
  EXPECT_THAT(err(), Not(HasSubstr("killed")));
}

TEST_F(LaunchTest, ASecondRequestEndsAllAtOnce) {
  script("await ps0 worker0 worker1; echo ready >$dir/events; exec sleep 1000",
         "trap '' TERM; mark $type$index; while :; do sleep 0.01; done");
  Launch launch(options_);
  std::jthread stopper([&](const std::stop_token& is_over) {
    event();
    while (!is_over.stop_requested()) {
      launch.request_stop(SIGTERM);
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(launch.run().exit_code, 128 + SIGTERM);
  EXPECT_THAT(err(), HasSubstr("worker:0 was to end at once; killed"));
}

// While nobody read its output, the launcher did not notice stop requests.
TEST_F(LaunchTest, AStopRequestEndsAllWhileNobodyReadsTheOutput) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const int file = std::exchange(options_.out_fd, pipe[1]);
  script("exec sleep 1000",
         "if [ $type$index = worker1 ]; then exec yes; fi\n"
         "if [ $type = ps ]; then await full; echo >$dir/events; fi; exec sleep 1000");
  options_.grace = milliseconds(100);
  std::thread watcher([&] {
    pollfd room{pipe[1], POLLOUT, 0};
    while (::poll(&room, 1, 0) == 1) std::this_thread::yield();
    std::ofstream(path("full"));
  });
  EXPECT_EQ(run_and_stop(SIGINT).exit_code, 128 + SIGINT);
  watcher.join();
  ::close(pipe[0]);
  ::close(std::exchange(options_.out_fd, file));
}

TEST_F(LaunchTest, ATaskThatWillNotEndIsKilledAfterTheGrace) {
  script(
      "await worker0; exit 3",
      "trap '' TERM; echo $$ >$dir/pid.$type$index; mark $type$index; while :; do sleep 1; done");
  options_.grace = milliseconds(30);
  EXPECT_EQ(run().exit_code, 3);
  EXPECT_THAT(err(), HasSubstr("[launch] worker:0 did not end in time; killed"));
  EXPECT_FALSE(runs("pid.worker0"));
}

TEST_F(LaunchTest, NothingThatATaskStartedSurvives) {
  script("setsid sleep 1000 & echo $! >$dir/pid.a; await worker0",
         "sleep 1000 & echo $! >$dir/pid.b; mark $type$index; wait");
  options_.workers = 1;
  run();
  EXPECT_FALSE(runs("pid.a"));
  EXPECT_FALSE(runs("pid.b"));
}

TEST_F(LaunchTest, AKilledServerStartsAgain) {
  script("await_text 'started worker:1 again'");
  options_.kills = {{{"worker", 1}, milliseconds(0)}};
  options_.restarts = 1;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(report(result, {"worker", 1}).starts, 2);
  EXPECT_EQ(report(result, {"worker", 1}).kills, 1);
  EXPECT_EQ(report(result, {"worker", 0}).starts, 1);
}

TEST_F(LaunchTest, AKilledServerStaysAwayWithoutRestart) {
  script("await_text 'killed worker:0.*it stays away'; exit 4");
  options_.kills = {{{"worker", 0}, milliseconds(0)}};
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_EQ(report(result, {"worker", 0}).starts, 1);
  EXPECT_EQ(report(result, {"worker", 0}).last_exit.signal, SIGKILL);
  EXPECT_THAT(err(), Not(HasSubstr("while the program runs")));
}

TEST_F(LaunchTest, AKillCanWaitForTheProgressOfTheChief) {
  script(
      R"(printf '\061' >/proc/self/fd/$COHORT_PROGRESS_FD; await worker0; printf '\062' >/proc/self/fd/$COHORT_PROGRESS_FD
            await_text 'killed worker:0 at 50 % of the steps')",
      "mark $type$index; exec sleep 1000");
  options_.kills = {{.task = {"worker", 0}, .at_percent = 50}};  // '\062' is 50
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(report(result, {"worker", 0}).kills, 1);
}

TEST_F(LaunchTest, AKillThatCameTooLateIsSaid) {
  script("exit 0");
  options_.kills = {{{"ps", 0}, std::chrono::hours(1)}};
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(err(),
              HasSubstr("[launch] all ended before the planned kill of ps:0 after 3600.0 s"));
}

TEST_F(LaunchTest, AServerWithABadConfigurationEndsAll) {
  script("exec sleep 1000", "[ $type = ps ] && exit 64; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 64);
  EXPECT_THAT(err(), HasSubstr("[launch] ps:0 cannot serve (exit code 64"));
}

TEST_F(LaunchTest, ACrashedServerIsReportedAndTheProgramGoesOn) {
  script("await_text 'worker:1 ended with exit code 70 while the program runs'; exit 5",
         "[ $type$index = worker1 ] && exit 70; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 5);
}

// The launcher printed only the number of the signal, and did not start the server again.
TEST_F(LaunchTest, AServerThatCrashesStartsAgainAsOftenAsAllowed) {
  script("await_text 'no restart left'; exit 5",
         "[ $type$index = worker1 ] && kill -SEGV $$; exec sleep 1000");
  options_.restarts = 2;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(report(result, {"worker", 1}).starts, 3);
  EXPECT_EQ(report(result, {"worker", 0}).starts, 1);
  EXPECT_THAT(err(), AllOf(HasSubstr("worker:1 ended by SIGSEGV (Segmentation fault) while the "
                                     "program runs; it starts again soon (restart 1 of 2)"),
                           HasSubstr("(restart 2 of 2)"), HasSubstr("started worker:1 again"),
                           HasSubstr("it has no restart left (--restart 2) and stays away")));
}

// The launcher ended with an error and killed all tasks.
TEST_F(LaunchTest, AStartThatFailsLeavesTheOthersAlone) {
  script("mark chief0; await_text 'no restart left'; exit 5",
         "mark $type$index; await chief0 ps0 worker0\n"
         "[ $type$index = worker1 ] && { rm -f $dir/program; exit 70; }; exec sleep 1000");
  std::ofstream(path("program")) << "#!/bin/sh\n" << options_.program[2];
  ::chmod(path("program").c_str(), 0700);
  options_.program = {path("program")};
  options_.restarts = 2;
  options_.restart_delay = milliseconds(0);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(report(result, {"worker", 1}).starts, 1);
  EXPECT_THAT(err(), HasSubstr("worker:1 cannot be started again: [cli.launch]"));
}

// The launcher printed only that the server had ended, not that it stays away, and no remedy.
TEST_F(LaunchTest, AServerThatStaysAwayIsSaidWithTheRemedy) {
  script("await_text 'worker:1 ended with exit code 70'; await_text 'killed ps:0'; exit 0",
         "[ $type$index = worker1 ] && exit 70; exec sleep 1000");
  options_.kills = {{{"ps", 0}, milliseconds(0)}};
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(err(), AllOf(HasSubstr("worker:1 ended with exit code 70 while the program runs; it "
                                     "stays away, and an epoch waits for it (--restart N"),
                           HasSubstr("killed ps:0 after 0.0 s; it stays away, and its variables "
                                     "are lost (--restart N")));
}

TEST_F(LaunchTest, SaysHowToAskForTheStateOfItsTasks) {
  script("exit 0");
  run();
  EXPECT_THAT(err(), HasSubstr("[launch] `cohort status --launch " + std::to_string(::getpid()) +
                               "` tells how the tasks are\n"));
}

TEST_F(LaunchTest, AServerThatEndsWellIsNotStartedAgain) {
  script("await_text 'worker:1 ended with exit code 0'; exit 5",
         "[ $type$index = worker1 ] && exit 0; exec sleep 1000");
  options_.restarts = 2;
  const LaunchResult result = run();
  EXPECT_EQ(report(result, {"worker", 1}).starts, 1);
  EXPECT_THAT(err(), Not(HasSubstr("again")));
}

// The lines were lost, but the exit code was 0.
TEST_F(LaunchTest, OutputThatCannotBeWrittenIsSaidAndTheProgramGoesOn) {
  const int file = std::exchange(options_.out_fd, ::open("/dev/full", O_WRONLY | O_CLOEXEC));
  script("await_text 'could not be written: No space left on device'", "echo x; exec sleep 1000");
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0) << "the program's own";
  EXPECT_EQ(result.output_error, ENOSPC);
  ::close(std::exchange(options_.out_fd, file));
}

// Another program takes the port of ps:0 before it listens, only at the first start or at each one.
class LaunchPortTest : public LaunchTest {
 protected:
  void steal_port(const std::string& when, const std::string& chief = "await served; exit 6") {
    script(chief, "if [ $type = ps ] && " + when + R"sh(; then
  port=${TF_CONFIG##*\"ps\":[\"127.0.0.1:}; port=${port%%\"*}
  echo x >>$dir/thefts; rm -f $dir/listens
  setsid python3 -c "
import socket, time
server = socket.create_server(('127.0.0.1', $port))
open('$dir/listens', 'w').close()
time.sleep(1000)" &
  await listens; exit 64
fi
[ $type = ps ] && mark served
exec sleep 1000)sh");
  }
};

TEST_F(LaunchPortTest, ATakenPortStartsAllAgainWithOthers) {
  steal_port("[ ! -e $dir/thefts ]");
  EXPECT_EQ(run().exit_code, 6);
  EXPECT_THAT(err(), HasSubstr("was taken by another program"));
}

TEST_F(LaunchPortTest, PortsThatAreAlwaysTakenMeanTryAgainLater) {
  steal_port("true");
  EXPECT_EQ(run().exit_code, 75);
  EXPECT_EQ(text("thefts"), "x\nx\nx\nx\n");
}

// A program that had run for hours was killed and started again.
TEST_F(LaunchPortTest, APortThatIsTakenLateEndsAll) {
  steal_port("await half",
             "printf '\\062' >/proc/self/fd/$COHORT_PROGRESS_FD; mark half; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 75);
  EXPECT_EQ(text("thefts"), "x\n");
}

TEST_F(LaunchTest, TheTasksDieWithTheLauncher) {
  script("await worker0 worker1; echo $(cat $dir/pid.worker0) >$dir/events; exec sleep 1000",
         "echo $$ >$dir/pid.$type$index; mark $type$index; exec sleep 1000");
  const pid_t launcher = ::fork();
  if (launcher == 0) ::_exit(run().exit_code);
  const pid_t worker = std::stoi(event());
  pollfd ended{static_cast<int>(::syscall(SYS_pidfd_open, worker, 0)), POLLIN, 0};
  ASSERT_GE(ended.fd, 0);
  ::kill(launcher, SIGKILL);
  ::waitpid(launcher, nullptr, 0);
  EXPECT_EQ(::poll(&ended, 1, 30'000), 1);
  ::close(ended.fd);
}

TEST_F(LaunchTest, ShellLinesAreThoseOfFiveShells) {
  options_.program = {"/bin/echo", "it's", "a b"};
  options_.ps = 2;
  const std::vector<std::string> lines = Launch::shell_lines(options_);
  ASSERT_EQ(lines.size(), 5u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr(R"("task":{"index":0,"type":"ps"}})"),
                              HasSubstr(R"(/bin/echo 'it'\''s' 'a b')")));
  EXPECT_THAT(lines[4], HasSubstr(R"("task":{"index":0,"type":"chief"}})"));
}

struct BadOptions {
  const char* name;
  void (*spoil)(LaunchOptions&);
  const char* message;
};
class LaunchOptionsTest : public LaunchTest, public ::testing::WithParamInterface<BadOptions> {};

TEST_P(LaunchOptionsTest, AreRefusedWithTheRemedy) {
  GetParam().spoil(script("exit 0"));
  try {
    Launch launch(options_);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code_of(error), 64);
    EXPECT_THAT(error.message(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bad, LaunchOptionsTest,
    ::testing::Values(
        BadOptions{"NoProgram", [](LaunchOptions& o) { o.program.clear(); }, "write it after --"},
        BadOptions{"AbsentProgram", [](LaunchOptions& o) { o.program = {"./absent"}; },
                   "got './absent'"},
        BadOptions{"DirectoryAsProgram", [](LaunchOptions& o) { o.program = {"/tmp"}; },
                   "got '/tmp'"},
        BadOptions{"NoWorkers", [](LaunchOptions& o) { o.workers = 0; }, "got 0 (--workers)"},
        BadOptions{"TooManyPs", [](LaunchOptions& o) { o.ps = 1001; }, "got 1001 (--ps)"},
        BadOptions{"NegativePs", [](LaunchOptions& o) { o.ps = -1; }, "got -1 (--ps)"},
        BadOptions{"NoTasks", [](LaunchOptions& o) { o.workers = o.ps = 0; }, "got 0 (--workers)"},
        BadOptions{"KillOfAnAbsentPs",
                   [](LaunchOptions& o) {
                     o.ps = 0;
                     o.kills = {{{"ps", 0}, {}}};
                   },
                   "got 'ps:0' (--kill)"},
        BadOptions{"NegativeRestarts", [](LaunchOptions& o) { o.restarts = -1; },
                   "got -1 (--restart)"},
        BadOptions{"KillOfTheChief",
                   [](LaunchOptions& o) {
                     o.kills = {{{"chief", 0}, {}}};
                   },
                   "got 'chief:0' (--kill)"},
        BadOptions{"KillOfNobody",
                   [](LaunchOptions& o) {
                     o.kills = {{{"worker", 2}, {}}};
                   },
                   "got 'worker:2' (--kill)"},
        BadOptions{"AbsentData", [](LaunchOptions& o) { o.data_dirs = {"/absent"}; },
                   "got '/absent' (--data)"}),
    [](const auto& bad) { return bad.param.name; });

}  // namespace
}  // namespace cohort::cli
