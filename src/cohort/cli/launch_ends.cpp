// SPDX-License-Identifier: Apache-2.0
// What the end of a task means for a launch: it starts again, stays away, or ends all others.
#include <csignal>
#include <utility>

#include "cohort/cli/internal/launch_loop.h"
#include "cohort/cli/internal/launch_task.h"

namespace cohort::cli {
namespace {

using std::chrono::steady_clock;

// A task that ends with this code has a wrong configuration, so another start would not help.
constexpr int kBadConfiguration = 64;
constexpr int kPeerLost = 69;
constexpr int kPortTaken = 75;  // or another call that may be tried again
// A server whose port is taken ends within this time after its start.
constexpr std::chrono::minutes kEarly{1};

bool is_bad_configuration(const ProcessExit& exit) {
  return exit.signal == 0 && exit.code == kBadConfiguration;
}

std::string how(const ProcessExit& exit) {
  return (exit.signal != 0 ? " ended by " : " ended with ") + exit.to_string();
}

}  // namespace

void LaunchLoop::chief_ended(const ProcessExit& exit) {
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
  } else if (finished_ && task.restarts > 0 &&
             (exit.code == kPeerLost || exit.code == kPortTaken)) {
    say(id.to_string() + how(exit) + "; it came back too late to train with the others");
  } else if (exit.signal == 0 && task.restarts == 0 && cluster_.is_taken(id)) {
    port_was_lost(task);
  } else if (can_restart(task) && !is_bad_configuration(exit)) {
    say(id.to_string() + how(exit) + plan_restart(task));
  } else {
    say(id.to_string() + how(exit) + why_the_job_fails(exit) + "; ending all");
    end_all(exit.shell_code(), SIGTERM);
  }
}

std::string LaunchLoop::why_the_job_fails(const ProcessExit& exit) const {
  if (is_bad_configuration(exit)) return "; its lines say why, and another start would not help";
  if (finished_) return ", and " + finished_->to_string() + " has finished";
  if (options_.restarts == 0) return " (--restart N would start it again)";
  return "; it has no restart left (--restart " + std::to_string(options_.restarts) + ")";
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
  const bool are_late = std::all_of(tasks_.begin(), tasks_.end(), [](const auto& task) {
    return task->process == nullptr || task->restarts > 0;
  });
  if (are_late && is_busy()) late_time_ = steady_clock::now() + options_.late_time;
}

void LaunchLoop::end_late_ones() {
  late_time_.reset();
  for (const auto& task : tasks_) {
    if (task->process)
      say(task->report.task.to_string() +
          " was started again and has not finished with the "
          "others; ending it");
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
  end_all(lost_port_ ? 0 : kPortTaken, lost_port_ ? SIGKILL : SIGTERM);
}

bool LaunchLoop::can_restart(const Task& task) const {
  return task.restarts < options_.restarts && !finished_;
}

std::string LaunchLoop::plan_restart(Task& task) {
  if (!can_restart(task)) return stays_away(task);
  ++task.restarts;
  task.restart_time = steady_clock::now() + options_.restart_delay;
  return "; it starts again soon (restart " + std::to_string(task.restarts) + " of " +
         std::to_string(options_.restarts) + ")";
}

// The text that says that the task is not started again, the consequence, and the remedy.
std::string LaunchLoop::stays_away(const Task& task) const {
  const std::string means = !cluster_.has_chief() ? ", and the others may go on without it"
                            : task.report.task.job == "worker" ? ", and an epoch waits for it"
                                                               : ", and its variables are lost";
  if (options_.restarts == 0)
    return "; it stays away" + means + " (--restart N would start it again)";
  return "; it has no restart left (--restart " + std::to_string(options_.restarts) +
         ") and stays away" + means;
}

}  // namespace cohort::cli
