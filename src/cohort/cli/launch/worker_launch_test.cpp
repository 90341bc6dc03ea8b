// SPDX-License-Identifier: Apache-2.0
// Launches without parameter servers, whose workers run the program: small scripts of /bin/sh.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/cli/launch.h"
#include "cohort/core/error.h"

namespace cohort::cli {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// The beginning of every worker's script: it finds out its index, and can wait for files of others.
constexpr const char* kWorkerPrelude = R"(
task=${TF_CONFIG##*\"task\":}
index=${task##*\"index\":}; index=${index%%[,\}]*}
await() { for f in "$@"; do until [ -e "$dir/$f" ]; do sleep 0.01; done; done; }
await_text() { until grep -q "$1" "$dir/err"; do sleep 0.01; done; }
mark() { : >"$dir/$1"; }
is_first_start() { [ ! -e "$dir/started$index" ] && mark started$index; }
)";

// Launches two workers. out() and err() have their output.
class WorkerLaunchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "workers_XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    dir_ = name;
    ::setenv("dir", dir_.c_str(), 1);
    options_.out_fd = ::open(path("out").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    options_.err_fd = ::open(path("err").c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0600);
    options_.workers = 2;
    options_.ps = 0;
    options_.restart_delay = milliseconds(0);
  }
  void TearDown() override {
    ::close(options_.out_fd);
    ::close(options_.err_fd);
    std::filesystem::remove_all(dir_);
  }

  // The scripts of worker:0 and of the other workers.
  void scripts(const std::string& first, const std::string& others) {
    options_.program = {"/bin/sh", "-c",
                        std::string(kWorkerPrelude) + "if [ $index = 0 ]; then\n" + first +
                            "\nelse\n" + others + "\nfi"};
  }
  LaunchResult run() { return Launch(options_).run(); }

  std::string path(const std::string& name) const { return dir_ + "/" + name; }
  std::string text(const std::string& name) const {
    std::ostringstream all;
    all << std::ifstream(path(name)).rdbuf();
    return all.str();
  }
  // Whether the process has ended. The launcher may have noticed it.
  bool has_ended(const std::string& pid_file) const {
    std::ifstream stat("/proc/" + std::to_string(std::stoi(text(pid_file))) + "/stat");
    std::string pid, name, state;
    stat >> pid >> name >> state;
    return state.empty() || state == "Z";
  }
  // Tells workers when the pipe is full, and reads it when worker:0 and worker:1 have ended.
  void read_when_two_have_ended(const int (&pipe)[2]) const {
    pollfd room{pipe[1], POLLOUT, 0};
    while (::poll(&room, 1, 0) == 1) std::this_thread::yield();
    const std::ofstream full(path("full"));
    while (!has_ended("pid0") || !has_ended("pid1")) std::this_thread::yield();
    char bytes[4096];
    while (::read(pipe[0], bytes, sizeof bytes) > 0) {
    }
  }
  std::string out() const { return text("out"); }
  std::string err() const { return text("err"); }

  std::string dir_;
  LaunchOptions options_;
};

TEST_F(WorkerLaunchTest, EachWorkerRunsTheProgramWithItsOwnTfConfig) {
  const std::string script = "echo \"$TF_CONFIG\" >$dir/config$index";
  scripts(script, script);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  ASSERT_EQ(result.tasks.size(), 2u);
  EXPECT_EQ(result.tasks[1].task, (TaskId{"worker", 1}));
  for (const char* index : {"0", "1"}) {
    EXPECT_THAT(text(std::string("config") + index),
                ::testing::MatchesRegex(
                    R"(\{"cluster":\{"worker":\["127.0.0.1:[0-9]+","127.0.0.1:[0-9]+"\]\},)"
                    R"("task":\{"index":)" +
                    std::string(index) + R"(,"type":"worker"\}\})" + "\n"));
  }
  const auto cluster = [&](const std::string& name) {
    return text(name).substr(0, text(name).find("\"task\""));
  };
  EXPECT_EQ(cluster("config0"), cluster("config1"));
}

TEST_F(WorkerLaunchTest, AllLinesBearTheirWorkerAndNobodyHasTheTerminal) {
  scripts("echo one; cat; echo three >&2", "printf 'no end'");
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(out(), AllOf(HasSubstr("[worker:0] one\n"), HasSubstr("[worker:1] no end\n")));
  EXPECT_EQ(err(), "[worker:0] three\n");
}

// Only the first worker has what a chief has: its variables, and the pipe of its progress.
TEST_F(WorkerLaunchTest, TheFirstWorkerActsAsTheChief) {
  ::unsetenv("OMP_NUM_THREADS");
  const std::string script =
      "echo \"${COLOUR:-none} ${COHORT_PROGRESS_FD:+progress} $OMP_NUM_THREADS\" >$dir/seen$index";
  scripts(script, script);
  options_.chief_environment = {{"COLOUR", "red"}};
  run();
  EXPECT_THAT(text("seen0"), ::testing::MatchesRegex("red progress [1-9][0-9]*\n"));
  EXPECT_THAT(text("seen1"), ::testing::MatchesRegex("none  [1-9][0-9]*\n"));
}

TEST_F(WorkerLaunchTest, AllWorkersMustEnd) {
  scripts("mark done0", "await done0; mark done1");
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_TRUE(std::filesystem::exists(path("done1")));
}

TEST_F(WorkerLaunchTest, AWorkerThatFailsEndsTheOthersAndItsCodeIsTheJobs) {
  scripts("mark ready; exec sleep 1000", "await ready; exit 7");
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_EQ(result.tasks[0].last_exit.signal, SIGTERM);
  EXPECT_EQ(err(),
            "[launch] worker:1 ended with exit code 7 (--restart N would start it again); "
            "ending all\n");
}

TEST_F(WorkerLaunchTest, AWorkerThatASignalEndsIs128AndTheSignal) {
  scripts("exec sleep 1000", "kill -SEGV $$");
  EXPECT_EQ(run().exit_code, 128 + SIGSEGV);
  EXPECT_THAT(err(), HasSubstr("worker:1 ended by SIGSEGV (Segmentation fault)"));
}

TEST_F(WorkerLaunchTest, AWorkerThatWillNotEndIsKilledAfterTheGrace) {
  scripts("trap '' TERM; mark ready; while :; do sleep 1; done", "await ready; exit 3");
  options_.grace = milliseconds(30);
  EXPECT_EQ(run().exit_code, 3);
  EXPECT_THAT(err(), HasSubstr("[launch] worker:0 did not end in time; killed"));
}

// The launcher sees both ends at once, because before that it waits for a reader of worker:2's
// lines. It took the one of the lower index for the first.
TEST_F(WorkerLaunchTest, TheCodeIsThatOfTheLostWorkerNotOfOneThatLostIt) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const int file = std::exchange(options_.out_fd, pipe[1]);
  scripts("echo $$ >$dir/pid0; await full; exit 69",
          "[ $index = 2 ] && { await pid0 pid1; exec yes; }\n"
          "echo $$ >$dir/pid1; await full; exit 5");
  options_.workers = 3;
  std::thread reader([&] { read_when_two_have_ended(pipe); });
  EXPECT_EQ(run().exit_code, 5);
  ::close(std::exchange(options_.out_fd, file));
  reader.join();
  ::close(pipe[0]);
}

// A step that throws on one worker throws on all, with the same exit code. The launcher blamed the
// first one that it found.
TEST_F(WorkerLaunchTest, TheWorkerWhoseErrorItWasIsBlamed) {
  scripts("await failed; printf worker:1 >/dev/fd/$COHORT_ORIGIN_FD; exit 70",
          "mark failed; exec sleep 1000");
  EXPECT_EQ(run().exit_code, 70);
  EXPECT_THAT(err(), HasSubstr("worker:0 ended with exit code 70, because of an error of worker:1 "
                               "(--restart N"));
  EXPECT_THAT(err(), HasSubstr("worker:1 has not ended by itself; ending all with exit code 70 of "
                               "worker:0\n"));
}

// Regression: the launch had the exit code of the one that lost it, which may not try again.
TEST_F(WorkerLaunchTest, TheCodeIsThatOfTheLostWorkerAlsoIfItEndsLater) {
  scripts("printf worker:1 >/dev/fd/$COHORT_ORIGIN_FD; exit 69",
          "until grep -q 'waiting for the exit code of worker:1' $dir/err; do sleep 0.01; done\n"
          "exit 75");
  EXPECT_EQ(run().exit_code, 75);
  EXPECT_THAT(err(),
              HasSubstr("worker:0 ended with exit code 69, because it lost or missed "
                        "worker:1 (--restart N would start it again); waiting for the exit code of "
                        "worker:1\n[launch] worker:1 ended with exit code 75"));
}

// Both have ended when the launcher looks, because before that it waits for a reader of worker:2's
// lines.
TEST_F(WorkerLaunchTest, TheWorkerWhoseErrorItWasIsBlamedFirst) {
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const int file = std::exchange(options_.out_fd, pipe[1]);
  scripts("echo $$ >$dir/pid0; await full; printf worker:1 >/dev/fd/$COHORT_ORIGIN_FD; exit 70",
          "[ $index = 2 ] && { await pid0 pid1; exec yes; }\n"
          "echo $$ >$dir/pid1; await full; exit 70");
  options_.workers = 3;
  std::thread reader([&] { read_when_two_have_ended(pipe); });
  EXPECT_EQ(run().exit_code, 70);
  ::close(std::exchange(options_.out_fd, file));
  reader.join();
  ::close(pipe[0]);
  EXPECT_THAT(err(), HasSubstr("[launch] worker:1 ended with exit code 70 (--restart N"));
}

TEST_F(WorkerLaunchTest, AStopRequestEndsAllWorkers) {
  ::mkfifo(path("events").c_str(), 0600);
  scripts("trap 'mark stopped0; exit 0' TERM; echo >$dir/events; while :; do sleep 0.01; done",
          "exec sleep 1000");
  Launch launch(options_);
  std::thread stopper([&] {
    std::string line;
    std::getline(std::ifstream(path("events")), line);
    launch.request_stop(SIGINT);
  });
  EXPECT_EQ(launch.run().exit_code, 128 + SIGINT);
  stopper.join();
  EXPECT_TRUE(std::filesystem::exists(path("stopped0")));
}

TEST_F(WorkerLaunchTest, AWorkerThatDiedStartsAgainWithTheSameTfConfig) {
  scripts("await again",
          "echo \"$TF_CONFIG\" >>$dir/configs; is_first_start && kill -KILL $$\n"
          "mark again");
  options_.restarts = 1;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.tasks[1].starts, 2);
  EXPECT_EQ(result.tasks[0].starts, 1);
  const std::string configs = text("configs"), one = configs.substr(0, configs.find('\n') + 1);
  EXPECT_EQ(configs, one + one);
  EXPECT_THAT(err(), AllOf(HasSubstr("worker:1 ended by SIGKILL (Killed); it starts again soon "
                                     "(restart 1 of 1)"),
                           HasSubstr("started worker:1 again")));
}

// Otherwise the launch would end, as no task runs.
TEST_F(WorkerLaunchTest, AllWorkersMayStartAgainAtOnce) {
  // Neither ends before the other has started again: a worker that has finished needs no other.
  scripts("is_first_start && exit 69; mark zero; await one",
          "is_first_start && exit 69; mark one; await zero");
  options_.restarts = 1;
  options_.restart_delay = milliseconds(50);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0) << err();
}

// Regression: all workers began anew on other ports, as at the first start.
TEST_F(WorkerLaunchTest, AWorkerWhosePortIsInUseWhenItStartsAgainTriesAgain) {
  scripts("await again", R"sh(is_first_start && exit 8
if [ ! -e $dir/listens ]; then
  port=${TF_CONFIG#*,\"127.0.0.1:}; port=${port%%\"*}
  setsid python3 -c "
import os, socket, time
server = socket.create_server(('127.0.0.1', $port))
open('$dir/listens', 'w').close()
while not os.path.exists('$dir/again'): time.sleep(0.01)" &
  await listens; exit 75
fi
mark again)sh");
  options_.restarts = 3;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0) << err();
  EXPECT_EQ(result.tasks[0].starts, 1);
  EXPECT_EQ(result.tasks[1].starts, 3);
  EXPECT_THAT(err(), AllOf(HasSubstr("worker:1 ended with exit code 75; it starts again soon "
                                     "(restart 2 of 3)"),
                           Not(HasSubstr("was taken by another program"))));
}

TEST_F(WorkerLaunchTest, AWorkerWithoutARestartLeftEndsTheJob) {
  scripts("exec sleep 1000", "exit 9");
  options_.restarts = 2;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 9);
  EXPECT_EQ(result.tasks[1].starts, 3);
  EXPECT_THAT(err(), HasSubstr("it has no restart left (--restart 2); ending all"));
}

TEST_F(WorkerLaunchTest, AWorkerWithABadConfigurationIsNotStartedAgain) {
  scripts("exec sleep 1000", "exit 64");
  options_.restarts = 2;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 64);
  EXPECT_EQ(result.tasks[1].starts, 1);
  EXPECT_THAT(err(), HasSubstr("its lines say why, and another start would not help; ending all"));
}

TEST_F(WorkerLaunchTest, AWorkerThatDiesAfterAnotherHasFinishedFailsTheJob) {
  scripts("mark done0", "await done0; while kill -0 $(cat $dir/pid0) 2>&-; do :; done; exit 8");
  options_.program[2] = std::string(kWorkerPrelude) + "echo $$ >$dir/pid$index\n" +
                        options_.program[2].substr(std::string(kWorkerPrelude).size());
  options_.restarts = 3;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 8);
  EXPECT_EQ(result.tasks[1].starts, 1);
  EXPECT_THAT(err(), HasSubstr("worker:1 ended with exit code 8, and worker:0 has finished; "
                               "ending all"));
}

TEST_F(WorkerLaunchTest, AWorkerThatWaitsForItsRestartWhenAnotherFinishesFailsTheJob) {
  scripts("await_text 'worker:1 ended with exit code 8; it starts again soon'", "exit 8");
  options_.restarts = 1;
  options_.restart_delay = std::chrono::hours(1);
  EXPECT_EQ(run().exit_code, 8);
  EXPECT_THAT(err(), HasSubstr("worker:1 is not started again, because worker:0 has finished"));
}

// Regression: the launch waited for the deadline of the worker, which found nobody, and failed.
TEST_F(WorkerLaunchTest, AWorkerThatComesBackTooLateIsEndedAndNoFailure) {
  scripts("await started1 again", "is_first_start && exit 8; mark again; exec sleep 1000");
  options_.restarts = 1;
  options_.late_time = milliseconds(1);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.tasks[1].starts, 2);
  EXPECT_THAT(err(), HasSubstr("worker:1 was started again and has not finished with the others; "
                               "ending it"));
}

// The launch waited for it without a line and without an end.
TEST_F(WorkerLaunchTest, AStoppedWorkerIsNamedAndEnded) {
  scripts("await stops; while ! grep -q '^State:.T' /proc/$(cat $dir/stops)/status; do :; done",
          "echo $$ >$dir/stopping; mv $dir/stopping $dir/stops; kill -STOP $$");
  options_.late_time = milliseconds(20);
  options_.grace = milliseconds(20);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(result.tasks[1].last_exit.signal, SIGKILL) << "it cannot handle SIGTERM";
  EXPECT_THAT(err(), AllOf(HasSubstr("waiting for worker:1 (it is stopped); worker:0 has finished"),
                           HasSubstr("worker:1 has not finished, and did nothing for 0.02 s (it is "
                                     "stopped); ending it")));
}

TEST_F(WorkerLaunchTest, AWorkerThatDoesNothingAfterTheOthersHaveFinishedIsEnded) {
  scripts("await waits", "mark waits; exec sleep 1000");
  options_.workers = 3;
  options_.late_time = milliseconds(20);
  EXPECT_EQ(run().exit_code, 75);
  EXPECT_THAT(err(), AllOf(HasSubstr("waiting for worker:1, worker:2; worker:0 has finished"),
                           HasSubstr("worker:2 has not finished, and did nothing for 0.02 s; "
                                     "ending it")));
}

// It may save what all have trained.
TEST_F(WorkerLaunchTest, AWorkerThatWorksAfterTheOthersHaveFinishedIsNotEnded) {
  scripts("await works",
          "mark works; await_text() { until grep -q \"$1\" $dir/err; do :; done; }\n"
          "await_text 'still waiting for worker:1, which works'");
  options_.late_time = milliseconds(500);
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0) << err();
  EXPECT_THAT(err(), Not(HasSubstr("ending it")));
}

TEST_F(WorkerLaunchTest, AWorkerThatComesBackAndFindsNobodyIsNoFailure) {
  scripts("mark has_pid0; await started1 again",
          "is_first_start && exit 8; await has_pid0; mark again; "
          "await_text 'worker:1 ended with exit code 8'; while kill -0 $(cat $dir/pid0) 2>&-; do "
          ":; done; exit 69");
  options_.program[2] = std::string(kWorkerPrelude) + "echo $$ >$dir/pid$index\n" +
                        options_.program[2].substr(std::string(kWorkerPrelude).size());
  options_.restarts = 1;
  EXPECT_EQ(run().exit_code, 0);
  EXPECT_THAT(err(), HasSubstr("it came back too late to train with the others"));
}

// Regression: such an end counted as success, and hid that a worker had returned too early.
TEST_F(WorkerLaunchTest, AWorkerThatWasNotStartedAgainFailsTheJobIfItEndsAfterAnotherHasFinished) {
  const auto end_with = [&](const std::string& code) {
    scripts("mark has_pid0; exit 0",
            "await has_pid0; while kill -0 $(cat $dir/pid0) 2>&-; do :; done; exit " + code);
    options_.program[2] = std::string(kWorkerPrelude) + "echo $$ >$dir/pid$index\n" +
                          options_.program[2].substr(std::string(kWorkerPrelude).size());
    return run().exit_code;
  };
  EXPECT_EQ(end_with("75"), 75) << "it asks for another start";
  EXPECT_THAT(err(), HasSubstr("worker:1 ended with exit code 75, and worker:0 has finished"));
  EXPECT_EQ(end_with("69"), 69) << "it lost a worker that did not wait for it";
}

TEST_F(WorkerLaunchTest, APlannedKillIsNoFailureAndTheOthersGoOn) {
  scripts("await_text 'killed worker:1 after 0.0 s; it stays away, and the others may go on'",
          "exec sleep 1000");
  options_.kills = {{{"worker", 1}, milliseconds(0)}};
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.tasks[1].kills, 1);
  EXPECT_EQ(result.tasks[1].last_exit.signal, SIGKILL);
}

// Regression: the exit code was 0.
TEST_F(WorkerLaunchTest, PlannedKillsOfAllWorkersAreAFailure) {
  scripts("exec sleep 1000", "exec sleep 1000");
  options_.kills = {{{"worker", 0}, milliseconds(0)}, {{"worker", 1}, milliseconds(0)}};
  EXPECT_EQ(run().exit_code, 137);
  EXPECT_THAT(err(), HasSubstr("no worker has finished"));
}

TEST_F(WorkerLaunchTest, AKillWaitsForTheProgressOfTheFirstWorkerAndARestartFollows) {
  scripts("await started1; printf '\\062' >/proc/self/fd/$COHORT_PROGRESS_FD; await again",
          "is_first_start && exec sleep 1000; mark again");
  options_.kills = {{.task = {"worker", 1}, .at_percent = 50}};  // '\062' is 50
  options_.restarts = 1;
  const LaunchResult result = run();
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.tasks[1].starts, 2);
}

TEST_F(WorkerLaunchTest, AWorkerThatCannotStartAgainEndsTheJob) {
  // The first worker's shell has read the program before it is removed.
  scripts("mark ready; exec sleep 1000", "await ready; rm -f $dir/program; exit 70");
  std::ofstream(path("program")) << "#!/bin/sh\n" << options_.program[2];
  ::chmod(path("program").c_str(), 0700);
  options_.program = {path("program")};
  options_.restarts = 1;
  EXPECT_EQ(run().exit_code, 70);
  EXPECT_THAT(err(), HasSubstr("worker:1 cannot be started again: [cli.launch]"));
}

// Each worker listens at its own address with SO_REUSEADDR, also after a restart, and is reached
// there. The launcher holds sockets that are bound to the same ports.
TEST_F(WorkerLaunchTest, AWorkerCanListenAtItsOwnAddress) {
  std::ofstream(path("meet.py")) << R"(
import json, os, signal, socket, time
config = json.loads(os.environ['TF_CONFIG'])
index = config['task']['index']
addresses = [tuple(a.split(':')) for a in config['cluster']['worker']]
addresses = [(host, int(port)) for host, port in addresses]
socket.setdefaulttimeout(60)
server = socket.socket()
server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
server.bind(addresses[index])
server.listen()
died = os.environ['dir'] + '/died'
listens = os.environ['dir'] + '/listens'
if index == 1:
    if not os.path.exists(died):
        open(died, 'w').close()
        os.kill(os.getpid(), signal.SIGKILL)
    open(listens, 'w').close()
    peer = server.accept()[0]
else:
    while not os.path.exists(listens):
        time.sleep(0.01)
    peer = socket.create_connection(addresses[1])
peer.sendall(str(index).encode())
print('met', peer.recv(1).decode(), flush=True)
)";
  options_.program = {"python3", path("meet.py")};
  options_.restarts = 1;
  EXPECT_EQ(run().exit_code, 0) << err();
  EXPECT_THAT(out(), AllOf(HasSubstr("[worker:0] met 1\n"), HasSubstr("[worker:1] met 0\n")));
}

TEST_F(WorkerLaunchTest, AStandardServerIsRefusedWithTheRemedy) {
  std::ofstream(path("cohort")) << "#!/bin/sh\n";
  ::chmod(path("cohort").c_str(), 0700);
  options_.program = {path("cohort"), "server"};
  try {
    const Launch launch(options_);
    FAIL() << "nothing thrown";
  } catch (const Error& error) {
    EXPECT_EQ(exit_code_of(error), 64);
    EXPECT_THAT(error.message(), HasSubstr("or give --ps 1 or more"));
  }
}

TEST_F(WorkerLaunchTest, ShellLinesAreThoseOfTheWorkers) {
  options_.program = {"/bin/echo"};
  const std::vector<std::string> lines = Launch::shell_lines(options_);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_THAT(lines[1],
              AllOf(HasSubstr(R"("task":{"index":1,"type":"worker"}})"), Not(HasSubstr("chief"))));
}

}  // namespace
}  // namespace cohort::cli
