// SPDX-License-Identifier: Apache-2.0
// A task of a launched cluster: its process if it runs, its output, and what happened to it.
#pragma once

#include <memory>
#include <optional>

#include "cohort/cli/internal/launch_loop.h"

namespace cohort::cli {

// Used only from the launch loop.
struct LaunchLoop::Task {
  Task(const TaskId& id, const LaunchOptions& options, StopState* stop)
      : report{id, {}, 0, 0},
        out("[" + id.to_string() + "] ", options.out_fd, stop),
        err("[" + id.to_string() + "] ", options.err_fd, stop) {}

  bool is_chief() const { return report.task == LocalCluster::chief(); }
  // Whether it has ended with an exit code of a lost peer (69) or an aborted call (75).
  bool has_lost_another() const {
    const std::optional<ProcessExit> exit = process->poll_exit();
    return exit && exit->signal == 0 && (exit->code == 69 || exit->code == 75);
  }

  TaskReport report;
  LinePrefixer out;
  LinePrefixer err;
  std::unique_ptr<TaskProcess> process;  // null if the task does not run
  bool out_is_open = false;
  bool err_is_open = false;
  bool is_killed = false;  // by a planned kill, so its end is not reported again
  int restarts = 0;
  std::optional<Time> restart_time;
};

}  // namespace cohort::cli
