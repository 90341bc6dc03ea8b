// SPDX-License-Identifier: Apache-2.0
// A task of a launched cluster: its process if it runs, its output, and what happened to it.
#pragma once

#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "cohort/cli/launch/launch_loop.h"

namespace cohort::cli {

// Used only from the launch loop.
struct LaunchLoop::Task {
  Task(const TaskId& id, const LaunchOptions& options, StopState* stop)
      : report{id, {}, 0, 0},
        is_v1(options.is_v1),
        out("[" + id.to_string() + "] ", options.out_fd, stop),
        err("[" + id.to_string() + "] ", options.err_fd, stop) {
    origin_pipe.make_reader_nonblocking();
  }

  // Whether it is the one for which all others work.
  bool is_chief() const { return !is_v1 && report.task == LocalCluster::chief(); }
  // Whether this is the exit code of a lost peer (69) or of a call that may be tried again (75).
  static bool has_lost_another(const ProcessExit& exit) {
    return exit.signal == 0 && (exit.code == 69 || exit.code == 75);
  }
  // Whether the error that has ended it is another task's.
  bool has_error_of_another() const {
    return !error_origin.empty() && error_origin != report.task.to_string();
  }
  // Whether it has ended, and not for a reason of its own.
  bool has_ended_after_another() {
    const std::optional<ProcessExit> exit = process->poll_exit();
    if (!exit) return false;
    char text[256];
    const ssize_t count = ::read(origin_pipe.reader(), text, sizeof text);
    if (count > 0) error_origin.assign(text, static_cast<std::size_t>(count));
    return has_lost_another(*exit) || (exit->shell_code() != 0 && has_error_of_another());
  }

  TaskReport report;
  bool is_v1 = false;
  LinePrefixer out;
  LinePrefixer err;
  std::unique_ptr<TaskProcess> process;  // null if the task does not run
  Pipe origin_pipe;          // run_main() writes the origin of an error that ends the program
  std::string error_origin;  // empty, or a task
  bool out_is_open = false;
  bool err_is_open = false;
  bool is_killed = false;  // by a planned kill, so its end is not reported again
  int restarts = 0;
  std::optional<Time> restart_time;
  std::chrono::milliseconds processor_time{0};  // at the last look whether it does anything
};

}  // namespace cohort::cli
