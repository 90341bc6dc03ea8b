// SPDX-License-Identifier: Apache-2.0
// The life of one launched cluster: starts, output, planned faults, the end of all.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/internal/pipe.h"
#include "cohort/cli/launch.h"
#include "cohort/cli/line_prefixer.h"
#include "cohort/cli/local_cluster.h"
#include "cohort/cli/task_process.h"

namespace cohort::cli {

// Waits in one poll() for output, ends of processes, planned times and stop requests. Used only
// from the thread that calls run().
class LaunchLoop {
 public:
  // Stop requests arrive as bytes, signal numbers, at `stop_fd`.
  LaunchLoop(const LaunchOptions& options, int stop_fd);
  ~LaunchLoop();

  LaunchResult run();
  // A server found its port taken by another program: all ended, nothing is wrong with the program.
  bool lost_port() const { return lost_port_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Task;

  void start(Task& task);
  void start_again(Task& task);
  void turn();
  void wait(std::optional<Time> until);
  void read_stop_requests();
  void read_progress();
  void collect(Task& task);
  void chief_ended(const ProcessExit& exit);
  void server_ended(Task& task, const ProcessExit& exit);
  void port_was_lost(const Task& task);
  // Plans the next start of a server that ended, where it has one left. Returns what to say of it.
  std::string plan_restart(Task& task);
  bool can_restart(const Task& task) const;
  std::string stays_away(const Task& task) const;
  // Of a write of the servers' lines, or our own.
  void note_output_error(int error);
  void run_planned(Time now);
  // Whether the kill was due, and so is over.
  bool run_kill(const PlannedKill& kill, Time now);
  std::optional<Time> next_planned() const;
  // Begins the end of all with this exit code; a later call changes nothing.
  void end_all(int exit_code, int signal);
  void kill_all(const std::string& reason);
  bool is_ending() const { return exit_code_.has_value(); }
  bool has_running() const;
  Task* find(const TaskId& id);
  void say(const std::string& text);
  LaunchResult result() const;

  const LaunchOptions& options_;
  Pipe progress_;  // before the ports: /bin/sh takes descriptors of one digit only
  LocalCluster cluster_;
  StopState stop_;
  Time stop_time_{};                          // of the last request
  std::vector<std::unique_ptr<Task>> tasks_;  // the chief last
  Time start_time_{};
  std::vector<PlannedKill> kills_;  // those to come
  int percent_ = 0;                 // of the chief's steps
  std::optional<int> exit_code_;
  std::optional<Time> kill_time_;
  bool lost_port_ = false;
  int output_error_ = 0;
};

}  // namespace cohort::cli
