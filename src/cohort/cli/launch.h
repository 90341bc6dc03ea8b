// SPDX-License-Identifier: Apache-2.0
// Runs a program as a cluster on this host, with one process for each task and its own TF_CONFIG.
//
//   Launch launch({.program = {"./train"}, .workers = 2, .ps = 2});
//   LaunchResult result = launch.run();      // result.exit_code: the chief's
//
// Servers (ps, worker) are started first; each of their lines begins with the name of the task. The
// chief has this process's standard streams. When the chief ends, or request_stop() is called, the
// other tasks are ended: with SIGTERM, and after `grace` with SIGKILL. The tasks end even if this
// process is killed.
//
//   Launch launch({.program = {"./train"}, .workers = 2, .ps = 0});
//
//   Launch launch({.program = {"./train"}, .is_v1 = true, .has_chief = true});
//
// With is_v1, the chief, the workers and the evaluator each run the program, and each ps a server.
// The job ends when all that run the program have ended, and fails with the first one that fails
// and does not start again.
//
// Without parameter servers there is no chief. Each worker runs the program, and they are one job:
// it ends when all have ended, or when one of them fails that does not start again. worker:0 acts
// as the chief: it has the progress and `chief_environment`.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "cohort/cli/launch/pipe.h"
#include "cohort/cli/task_process.h"
#include "cohort/cluster/cluster_resolver.h"

namespace cohort::cli {

// A task gets SIGKILL, to try out its loss, when the time has passed and the percentage is
// reached.
struct PlannedKill {
  TaskId task;
  std::chrono::milliseconds after{0};  // since all tasks were started
  int at_percent = 0;                  // of the acting chief's steps, as its progress bar reports

  std::string to_string() const;
};

struct LaunchOptions {
  std::vector<std::string> program = {};
  int workers = 2;
  int ps = 1;  // 0: the workers run the program, without a chief
  // Each task but ps runs the program by itself; a chief and an evaluator are there if wanted.
  bool is_v1 = false;
  bool has_chief = false;
  bool has_evaluator = false;
  std::vector<std::string> server_command = {};  // of a ps, with is_v1; empty: `cohort server`
  // Directories in which the servers may read and create files.
  std::vector<std::string> data_dirs = {};
  // Environment variables that only the acting chief gets.
  std::vector<std::pair<std::string, std::string>> chief_environment = {};
  bool serves_metrics = false;  // every task does (COHORT_METRICS)
  std::vector<PlannedKill> kills = {};
  // The most restarts of each task. It starts again after `restart_delay` if it was ended by a
  // signal or by a planned kill, or with an exit code other than 0 and 64; without parameter
  // servers, only while no worker has ended with 0. The chief starts again only after 69 and 75.
  int restarts = 0;
  // Other numbers of restarts, by "chief", "worker", "ps" or "evaluator".
  std::map<std::string, int> restarts_of = {};
  std::chrono::milliseconds restart_delay{1000};
  // Without parameter servers: a worker that does nothing for so long, after another one has
  // finished, is ended: it waits for the others in vain, or is stopped. One that uses a processor
  // or waits for a disk is not.
  std::chrono::milliseconds late_time{30'000};
  std::chrono::milliseconds grace{10'000};
  // The descriptors to which the lines of all but the chief are written.
  int out_fd = 1;
  int err_fd = 2;
};

// The result of one task.
struct TaskReport {
  TaskId task;
  ProcessExit last_exit;
  int starts = 0;
  int kills = 0;  // only planned kills
};

struct LaunchResult {
  // The chief's. Without parameter servers, and with is_v1: 0 if all that run the program have
  // ended with 0, else that of the first one that failed and did not start again, or 75 if one did
  // not finish. A planned kill is no failure. 128 + signal after request_stop(), unless the chief
  // had ended with 0 before.
  int exit_code = 0;
  // The errno of the first line that could not be written, or 0. The tasks go on without it.
  int output_error = 0;
  std::vector<TaskReport> tasks;  // a chief is the last one
};

// Call run() once. Thread-compatible, except that any thread may call request_stop().
class Launch {
 public:
  // Throws invalid_argument if a number, task, directory or the program is not valid.
  explicit Launch(LaunchOptions options);

  LaunchResult run();
  // Ends the chief and then the other tasks, or all workers if there is no chief; run() then
  // returns 128 + `signal`, and starts nothing again. A second call, at least a quarter of a second
  // later, kills them. May be called from any thread and from signal handlers.
  void request_stop(int signal) noexcept;
  // The command lines that start the tasks by hand, each in its own shell.
  static std::vector<std::string> shell_lines(const LaunchOptions& options);

 private:
  LaunchOptions options_;
  Pipe stop_;
};

}  // namespace cohort::cli
