// SPDX-License-Identifier: Apache-2.0
// Runs one launched cluster: starts the tasks, copies their output, kills servers as planned, and
// ends all tasks.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/cli/launch.h"
#include "cohort/cli/launch/pipe.h"
#include "cohort/cli/line_prefixer.h"
#include "cohort/cli/local_cluster.h"
#include "cohort/cli/task_process.h"

namespace cohort::cli {

// Waits in one poll() for output, ends of processes, planned times and stop requests. Used only
// from the thread that calls run(). Many methods because each kind of event has one, and all of
// them act on the same tasks.
class LaunchLoop {
 public:
  // A stop request is a byte, the number of a signal, that can be read from `stop_fd`.
  LaunchLoop(const LaunchOptions& options, int stop_fd);
  ~LaunchLoop();

  LaunchResult run();
  // Whether all tasks were ended because another program had taken the port of a server. They may
  // be started again on other ports.
  bool lost_port() const { return lost_port_; }

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Task;

  void start(Task& task);
  void start_again(Task& task);
  void turn();
  void wait(std::optional<Time> until);
  void read_stop_requests();
  // Ends the launch with this code because of the first stop request.
  void stop(int exit_code);
  void read_progress();
  void collect(Task& task);
  void chief_ended(Task& task, const ProcessExit& exit);
  void server_ended(Task& task, const ProcessExit& exit);
  void worker_ended(Task& task, const ProcessExit& exit);
  void worker_finished(const TaskId& id);
  void v1_task_ended(Task& task, const ProcessExit& exit);
  void v1_server_ended(Task& task, const ProcessExit& exit);
  bool is_v1_server(const Task& task) const;
  // Ends the servers when nothing else runs or is to start again.
  void end_v1_servers_if_done();
  void stop_v1(int exit_code);
  void say_who_is_late();
  void end_late_ones();
  static std::string because_of(const Task& task);
  // Whether the worker runs whose error has ended this one.
  bool is_cause_running(const Task& task) const;
  std::string why_the_job_fails(const Task& task) const;
  void port_was_lost(const Task& task);
  // Plans the next start of a server that ended, if it has a restart left. Returns the text about
  // it for the log.
  std::string plan_restart(Task& task);
  bool can_restart(const Task& task) const;
  int restart_limit(const Task& task) const;
  std::string restart_option(const Task& task) const;
  std::string stays_away(const Task& task) const;
  // Records the errno of a line that could not be written; 0 is no error.
  void note_output_error(int error);
  void run_planned(Time now);
  // Kills the server if it is time. Returns whether the plan is done.
  bool run_kill(const PlannedKill& kill, Time now);
  std::optional<Time> next_planned() const;
  // Sends `signal` to all tasks, and sets the exit code of the launch. Later calls do nothing.
  void end_all(int exit_code, int signal);
  // Sends it to all tasks that run, and kills those that do not end in time.
  void signal_all(int signal);
  void kill_all(const std::string& reason);
  bool is_ending() const { return exit_code_.has_value(); }
  // Whether a task runs or is to start again.
  bool is_busy() const;
  Task* find(const TaskId& id);
  void say(const std::string& text);
  void note_that_none_finished();

  const LaunchOptions& options_;
  Pipe progress_;  // opened before the ports, because /bin/sh can use only descriptors below 10
  LocalCluster cluster_;
  StopState stop_;
  Time stop_time_{};                          // the time of the last stop request
  bool is_stopped_ = false;                   // by a stop request
  std::vector<std::unique_ptr<Task>> tasks_;  // a chief is the last one
  Time start_time_{};
  std::vector<PlannedKill> kills_;  // those that are not done yet
  int percent_ = 0;                 // the part of the acting chief's steps that is done
  std::optional<TaskId> finished_;  // the first worker that ended with 0, if they run the program
  std::optional<Time> late_note_time_;  // when the log says for which workers it waits
  std::optional<Time> late_time_;       // when they are ended, if they do nothing
  bool is_busy_said_ = false;           // that a late worker works
  int failure_ = 0;                     // the exit code of a worker that did not finish
  // A worker has failed because of an error of another one, whose own exit code says more. Until
  // this time the launch waits for it.
  struct Failing {
    TaskId task;
    int exit_code = 0;
    Time time{};
  };
  std::optional<Failing> failing_;
  std::optional<int> exit_code_;
  std::optional<Time> kill_time_;
  bool lost_port_ = false;
  bool are_servers_ended_ = false;  // with is_v1
  int output_error_ = 0;
};

}  // namespace cohort::cli
