// SPDX-License-Identifier: Apache-2.0
// The consequence of a task's end for a launch: it starts again, stays away, or ends all others.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "cohort/cli/launch/launch_loop.h"
#include "cohort/cli/launch/launch_task.h"
#include "cohort/cli/launch/process_activity.h"

namespace cohort::cli {
namespace {

using std::chrono::steady_clock;

// A task that ends with this code has a wrong configuration, so another start would not help.
constexpr int kBadConfiguration = 64;
// Among others, the port of a server is taken, or the others have gone on without the task.
constexpr int kTryAgain = 75;
// A server whose port is taken ends within this time after its start.
constexpr std::chrono::minutes kEarly{1};
// An error of one worker ends another at once, and may end that one itself a little later.
constexpr std::chrono::seconds kCauseTime{5};
// A worker does something if it uses this part of the time on a processor: connections that are
// kept alive take less. The system counts in steps of the second number.
constexpr int kBusyPart = 50;
constexpr std::chrono::milliseconds kBusyMin{10};

bool is_bad_configuration(const ProcessExit& exit) {
  return exit.signal == 0 && exit.code == kBadConfiguration;
}

std::string in_seconds(std::chrono::milliseconds time) {
  return fmt::format("{:g} s", static_cast<double>(time.count()) / 1000);
}

std::string how(const ProcessExit& exit) {
  return (exit.signal != 0 ? " ended by " : " ended with ") + exit.to_string();
}

}  // namespace

void LaunchLoop::chief_ended(Task& task, const ProcessExit& exit) {
  if (is_stopped_) return signal_all(SIGTERM);  // the servers have waited for its end
  if (!is_ending() && task.has_lost_another(exit) && can_restart(task))
    return say("the program" + how(exit) + plan_restart(task));
  if (!is_ending() && exit.signal != 0) say("the program was ended by " + exit.to_string());
  end_all(exit.shell_code(), SIGTERM);
}

void LaunchLoop::server_ended(Task& task, const ProcessExit& exit) {
  const TaskId& id = task.report.task;
  const bool is_crash = exit.shell_code() != 0;
  if (task.is_killed) {
    plan_restart(task);
  } else if (is_crash && cluster_.is_taken(id)) {
    port_was_lost(task);
  } else if (is_bad_configuration(exit)) {
    say(id.to_string() + " cannot serve (" + exit.to_string() +
        "; its lines above say why); ending all");
    end_all(kBadConfiguration, SIGTERM);
  } else {
    say(id.to_string() + how(exit) + " while the program runs" +
        (is_crash ? plan_restart(task) : "; it stays away"));
  }
}

// Workers that run the program are one job, which fails with the first one that fails and does not
// start again.
void LaunchLoop::worker_ended(Task& task, const ProcessExit& exit) {
  const TaskId& id = task.report.task;
  if (task.is_killed && exit.signal == SIGKILL) {
    plan_restart(task);
  } else if (exit.shell_code() == 0) {
    worker_finished(id);
  } else if (finished_ && task.restarts > 0 && task.has_lost_another(exit)) {
    say(id.to_string() + how(exit) + "; it came back too late to train with the others");
  } else if (exit.signal == 0 && task.restarts == 0 && cluster_.is_taken(id)) {
    port_was_lost(task);
  } else if (can_restart(task) && !is_bad_configuration(exit)) {
    say(id.to_string() + how(exit) + because_of(task) + plan_restart(task));
  } else {
    const bool waits = is_cause_running(task);
    say(id.to_string() + how(exit) + because_of(task) + why_the_job_fails(task) +
        (waits ? "; waiting for the exit code of " + task.error_origin : "; ending all"));
    if (!waits) return end_all(exit.shell_code(), SIGTERM);
    if (!failing_) failing_ = {id, exit.shell_code(), steady_clock::now() + kCauseTime};
  }
}

bool LaunchLoop::is_cause_running(const Task& task) const {
  return task.has_error_of_another() &&
         std::any_of(tasks_.begin(), tasks_.end(), [&](const auto& one) {
           return one->process && one->report.task.to_string() == task.error_origin;
         });
}

// An error in a step of one worker is thrown on all of them, and all end with its exit code.
std::string LaunchLoop::because_of(const Task& task) {
  if (!task.has_error_of_another()) return "";
  const bool has_lost_it = task.has_lost_another(task.report.last_exit);
  return (has_lost_it ? ", because it lost or missed " : ", because of an error of ") +
         task.error_origin;
}

std::string LaunchLoop::why_the_job_fails(const Task& task) const {
  if (is_bad_configuration(task.report.last_exit))
    return "; its lines say why, and another start would not help";
  if (finished_) return ", and " + finished_->to_string() + " has finished";
  if (restart_limit(task) == 0) return " (--restart N would start it again)";
  return "; it has no restart left (" + restart_option(task) + ")";
}

// All workers finish together, so one that would start now would find nobody to train with.
void LaunchLoop::worker_finished(const TaskId& id) {
  if (!finished_) finished_ = id;
  for (const auto& task : tasks_) {
    if (!std::exchange(task->restart_time, {})) continue;
    say(task->report.task.to_string() + " is not started again, because " + id.to_string() +
        " has finished");
    if (failure_ == 0 && !task->is_killed) failure_ = task->report.last_exit.shell_code();
  }
  late_time_.reset();
  if (is_busy()) late_note_time_ = steady_clock::now() + options_.late_time / 10;
}

// Not said at once, because workers that finish together do not end at the same moment.
void LaunchLoop::say_who_is_late() {
  late_note_time_.reset();
  late_time_ = steady_clock::now() + options_.late_time;
  auto activities = activity_of_groups();
  std::string late;
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    const ProcessActivity& activity = activities[task->process->pid()];
    task->processor_time = activity.processor_time;
    late += (late.empty() ? "" : ", ") + task->report.task.to_string() +
            (activity.is_stopped ? " (it is stopped)" : "");
  }
  if (late.empty()) return;
  say("waiting for " + late + "; " + finished_->to_string() + " has finished " +
      in_seconds(options_.late_time / 10) + " ago, and a worker that now does nothing for " +
      in_seconds(options_.late_time) + " is ended (--late)");
}

// A worker that works is not ended: it may save or evaluate what all have trained.
void LaunchLoop::end_late_ones() {
  late_time_.reset();
  auto activities = activity_of_groups();
  std::string busy;
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    const ProcessActivity& activity = activities[task->process->pid()];
    const auto worked =
        activity.processor_time - std::exchange(task->processor_time, activity.processor_time);
    if (activity.waits_for_a_disk || worked >= std::max(kBusyMin, options_.late_time / kBusyPart))
      busy += (busy.empty() ? "" : ", ") + task->report.task.to_string();
  }
  if (!busy.empty()) {
    late_time_ = steady_clock::now() + options_.late_time;
    if (!std::exchange(is_busy_said_, true)) say("still waiting for " + busy + ", which works");
    return;
  }
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    const bool is_back = task->restarts > 0;
    if (!is_back && failure_ == 0) failure_ = kTryAgain;
    say(task->report.task.to_string() +
        (is_back ? " was started again and has not finished with the others"
                 : " has not finished, and did nothing for " + in_seconds(options_.late_time)) +
        (activities[task->process->pid()].is_stopped ? " (it is stopped)" : "") + "; ending it");
  }
  end_all(failure_, SIGTERM);
}

// Another program has taken the port. The other tasks know the old address, so all tasks must start
// again. This is done only at the beginning, because the program loses the work that it has done.
void LaunchLoop::port_was_lost(const Task& task) {
  const TaskId& id = task.report.task;
  say("the port of " + id.to_string() + " (" + cluster_.address(id) +
      ") was taken by another program; ending all");
  const bool is_early = percent_ == 0 && steady_clock::now() < start_time_ + kEarly;
  lost_port_ = task.report.starts == 1 && is_early;
  end_all(lost_port_ ? 0 : kTryAgain, lost_port_ ? SIGKILL : SIGTERM);
}

int LaunchLoop::restart_limit(const Task& task) const {
  const auto own = options_.restarts_of.find(task.report.task.job);
  return own == options_.restarts_of.end() ? options_.restarts : own->second;
}

// As the user has written it.
std::string LaunchLoop::restart_option(const Task& task) const {
  const std::string& role = task.report.task.job;
  return (options_.restarts_of.contains(role) ? "--restart-of " + role + "=" : "--restart ") +
         std::to_string(restart_limit(task));
}

bool LaunchLoop::can_restart(const Task& task) const {
  return task.restarts < restart_limit(task) && !finished_;
}

std::string LaunchLoop::plan_restart(Task& task) {
  if (!can_restart(task)) return stays_away(task);
  ++task.restarts;
  task.restart_time = steady_clock::now() + options_.restart_delay;
  return "; it starts again soon (restart " + std::to_string(task.restarts) + " of " +
         std::to_string(restart_limit(task)) + ")";
}

// The text that says that the task is not started again, the consequence, and the remedy.
std::string LaunchLoop::stays_away(const Task& task) const {
  const std::string means = is_v1_server(task)      ? ", and nobody can train without its variables"
                            : !cluster_.has_chief() ? ", and the others may go on without it"
                            : task.report.task.job == "worker" ? ", and an epoch waits for it"
                                                               : ", and its variables are lost";
  if (restart_limit(task) == 0)
    return "; it stays away" + means + " (--restart N would start it again)";
  return "; it has no restart left (" + restart_option(task) + ") and stays away" + means;
}

bool LaunchLoop::is_v1_server(const Task& task) const {
  return options_.is_v1 && task.report.task.job == "ps";
}

// Tasks of version 1 that run the program do not need each other to end: one that starts again goes
// on with the variables of the servers.
void LaunchLoop::v1_task_ended(Task& task, const ProcessExit& exit) {
  const TaskId& id = task.report.task;
  if (is_ending()) return end_v1_servers_if_done();
  if (is_v1_server(task)) return v1_server_ended(task, exit);
  if (task.is_killed && exit.signal == SIGKILL) {
    plan_restart(task);
  } else if (exit.shell_code() != 0) {
    const bool starts_again = can_restart(task) && !is_bad_configuration(exit);
    say(id.to_string() + how(exit) + because_of(task) +
        (starts_again ? plan_restart(task) : why_the_job_fails(task) + "; ending all"));
    if (!starts_again) return end_all(exit.shell_code(), SIGTERM);
  }
  end_v1_servers_if_done();
}

// Tasks that train would wait for a server that stays away until their deadline. They miss one that
// has ended with 0, too, because of a signal to it alone.
void LaunchLoop::v1_server_ended(Task& task, const ProcessExit& exit) {
  const bool is_needed = std::any_of(tasks_.begin(), tasks_.end(), [](const auto& one) {
    const std::string& job = one->report.task.job;
    return job != "ps" && job != "evaluator" && (one->process || one->restart_time);
  });
  if (is_bad_configuration(exit) || (exit.shell_code() != 0 && cluster_.is_taken(task.report.task)))
    return server_ended(task, exit);
  const bool is_planned = task.is_killed && exit.signal == SIGKILL;  // the log has told its fate
  const bool starts_again = can_restart(task);
  const std::string fate = plan_restart(task);
  if (!is_planned) say(task.report.task.to_string() + how(exit) + " while the program runs" + fate);
  if (starts_again || !is_needed) return;
  say("ending all");
  end_all(exit.shell_code() == 0 ? kTryAgain : exit.shell_code(), SIGTERM);
}

void LaunchLoop::end_v1_servers_if_done() {
  const bool is_done = std::none_of(tasks_.begin(), tasks_.end(), [this](const auto& task) {
    const bool will_run = task->process || (task->restart_time && !is_ending());
    return task->report.task.job != "ps" && will_run;
  });
  if (!is_done || std::exchange(are_servers_ended_, true)) return;
  if (!is_ending()) exit_code_ = 0;
  signal_all(SIGTERM);
}

// The servers go on until the others have ended, which may save what they have.
void LaunchLoop::stop_v1(int exit_code) {
  exit_code_ = exit_code;
  kill_time_ = steady_clock::now() + options_.grace;
  for (const auto& task : tasks_) {
    if (task->process && task->report.task.job != "ps") task->process->signal(SIGTERM);
  }
  end_v1_servers_if_done();
}

}  // namespace cohort::cli
