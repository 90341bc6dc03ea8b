// SPDX-License-Identifier: Apache-2.0
// Runs a program as a cluster on this host: one process a task, each with its own TF_CONFIG.
//
//   Launch launch({.program = {"./train"}, .workers = 2, .ps = 2});
//   LaunchResult result = launch.run();      // result.exit_code: the chief's
//
// Servers (ps, worker) are started first; their lines are prefixed with the task. The chief keeps
// this process's streams. When the chief ends, or request_stop() is called, the others are ended:
// SIGTERM, then SIGKILL after `grace`. Nothing stays behind, whatever happens to this process.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cli/task_process.h"
#include "cohort/cluster/task_id.h"

namespace cohort::cli {

class Pipe;

// A fault to show that the cluster survives it: SIGKILL, once both have come.
struct PlannedKill {
  TaskId task;
  std::chrono::milliseconds after{0};  // since the start of the chief
  int at_percent = 0;                  // of its steps, as its progress bar tells

  std::string to_string() const;
};

struct LaunchOptions {
  std::vector<std::string> program = {};
  int workers = 2;
  int ps = 1;
  // Directories whose files the servers may open.
  std::vector<std::string> data_dirs = {};
  // Only the chief gets these.
  std::vector<std::pair<std::string, std::string>> chief_environment = {};
  std::vector<PlannedKill> kills = {};
  // How often each server starts again at most, this long after it ended by a signal, by an exit
  // code other than 0 and 64, or by a planned kill.
  int restarts = 0;
  std::chrono::milliseconds restart_delay{1000};
  std::chrono::milliseconds grace{10'000};
  // Where the servers' lines go.
  int out_fd = 1;
  int err_fd = 2;
};

// What became of one task.
struct TaskReport {
  TaskId task;
  ProcessExit last_exit;
  int starts = 0;
  int kills = 0;  // planned ones
};

struct LaunchResult {
  int exit_code = 0;
  // The errno of the first line of a server that could not be written, or 0; the program went on.
  int output_error = 0;
  std::vector<TaskReport> tasks;  // the chief last
};

// One use. Thread-compatible, but for request_stop().
class Launch {
 public:
  // Throws invalid_argument for numbers, tasks, directories or a program that cannot be.
  explicit Launch(LaunchOptions options);
  ~Launch();

  LaunchResult run();
  // Ends all; run() then returns 128 + `signal`. A second call, a quarter of a second later
  // or more, kills. Any thread, and signal handlers.
  void request_stop(int signal) noexcept;
  // The lines by which the tasks would be started by hand, one a shell.
  static std::vector<std::string> shell_lines(const LaunchOptions& options);

 private:
  LaunchOptions options_;
  std::unique_ptr<Pipe> stop_;
};

}  // namespace cohort::cli
