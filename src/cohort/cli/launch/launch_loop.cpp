// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/launch_loop.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <utility>

#include "cohort/cli/launch/launch_task.h"
#include "cohort/cli/launch/task_environment.h"
#include "cohort/core/error.h"
#include "cohort/core/system_error.h"

namespace cohort::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// Requests within this time count as one, because `timeout` sends its signal twice: to the process
// and to its group.
constexpr milliseconds kSameRequest{250};
// The period of looking for ended processes, on kernels without pidfd.
constexpr milliseconds kPollPeriod{20};

// Copies the bytes that can be read now. The number of reads is limited, so that a task that never
// stops writing cannot block the loop; the limit is more than a pipe holds. Returns false at the
// end of the stream.
bool drain(int fd, LinePrefixer& lines) {
  constexpr int kReadsMax = 16;
  char bytes[16 << 10];
  for (int reads = 0; reads < kReadsMax; ++reads) {
    const ssize_t count = ::read(fd, bytes, sizeof bytes);
    if (count <= 0) return count < 0 && (errno == EAGAIN || errno == EINTR);
    lines.write({bytes, static_cast<std::size_t>(count)});
  }
  return true;
}

// Kills the processes that tasks have left behind. They are children of this process, because it is
// their subreaper.
void end_orphans() {
  const std::string folder = "/proc/self/task/" + std::to_string(::getpid()) + "/children";
  for (int round = 0; round < 100; ++round) {
    std::ifstream children(folder);
    pid_t child = 0;
    if (!(children >> child)) return;
    do {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    } while (children >> child);
  }
}

}  // namespace

LaunchLoop::LaunchLoop(const LaunchOptions& options, int stop_fd)
    : options_(options), cluster_(shape_of(options)), stop_{stop_fd}, kills_(options.kills) {
  progress_.make_reader_nonblocking();
  for (const TaskId& id : cluster_.tasks())
    tasks_.push_back(std::make_unique<Task>(id, options_, &stop_));
}

LaunchLoop::~LaunchLoop() = default;

LaunchResult LaunchLoop::run() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (const auto& task : tasks_) start(*task);
  if (cluster_.has_chief())
    say("`cohort status --launch " + std::to_string(::getpid()) + "` tells how the tasks are");
  start_time_ = steady_clock::now();
  while (is_busy()) turn();
  end_orphans();
  for (const PlannedKill& kill : kills_) {
    if (!lost_port_) say("all ended before the planned kill of " + kill.to_string());
  }
  note_that_none_finished();
  const int failure = failing_ ? failing_->exit_code : failure_;
  LaunchResult result{exit_code_.value_or(failure), output_error_, {}};
  for (const auto& task : tasks_) result.tasks.push_back(task->report);
  return result;
}

// Planned kills are no failure of a job that goes on without those workers, and nobody has.
void LaunchLoop::note_that_none_finished() {
  if (options_.is_v1 || cluster_.has_chief() || finished_ || exit_code_ || failing_ ||
      failure_ != 0 || lost_port_)
    return;
  failure_ = tasks_.front()->report.last_exit.shell_code();
  say("no worker has finished");
}

void LaunchLoop::start(Task& task) {
  ProcessOptions options{command_of(options_, task.report.task),
                         environment_of(options_, cluster_, task.report.task), !task.is_chief()};
  const auto keep = [&options](const char* variable, int fd) {
    options.kept_fds.push_back(fd);
    options.environment.emplace_back(variable, std::to_string(fd));
  };
  if (task.report.task == cluster_.acting_chief()) keep("COHORT_PROGRESS_FD", progress_.writer());
  if (!cluster_.has_chief()) keep("COHORT_ORIGIN_FD", task.origin_pipe.writer());
  task.error_origin.clear();
  task.process = std::make_unique<TaskProcess>(options);
  task.out_is_open = task.err_is_open = !task.is_chief();
  task.restart_time.reset();
  task.is_killed = false;
  ++task.report.starts;
}

// One round of the loop: waits for the next event and handles it.
void LaunchLoop::turn() {
  wait(next_planned());
  read_stop_requests();
  read_progress();
  // If several ended, those come last that ended because of another.
  std::vector<Task*> last;
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    task->has_ended_after_another() ? last.push_back(task.get()) : collect(*task);
  }
  for (Task* task : last) collect(*task);
  run_planned(steady_clock::now());
}

void LaunchLoop::wait(std::optional<Time> until) {
  std::vector<pollfd> events = {{stop_.fd, POLLIN, 0}, {progress_.reader(), POLLIN, 0}};
  int timeout = -1;
  const auto at_most = [&timeout](milliseconds time) {
    const int value = static_cast<int>(std::clamp<std::int64_t>(time.count(), 0, 60'000));
    timeout = timeout < 0 ? value : std::min(timeout, value);
  };
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    if (task->out_is_open) events.push_back({task->process->stdout_fd(), POLLIN, 0});
    if (task->err_is_open) events.push_back({task->process->stderr_fd(), POLLIN, 0});
    if (task->process->exit_fd() >= 0) events.push_back({task->process->exit_fd(), POLLIN, 0});
    if (task->process->exit_fd() < 0) at_most(kPollPeriod);
  }
  if (until) at_most(std::chrono::ceil<milliseconds>(*until - steady_clock::now()));
  ::poll(events.data(), events.size(), timeout);
}

void LaunchLoop::read_stop_requests() {
  unsigned char signal = 0;
  while (::read(stop_.fd, &signal, 1) == 1) {
    const Time now = steady_clock::now();
    if (std::exchange(stop_.is_requested, true) && now < stop_time_ + kSameRequest) continue;
    stop_time_ = now;
    is_stopped_ ? kill_all("was to end at once") : stop(128 + signal);
  }
}

// The chief goes on with the servers until it has ended, since it may save what they have.
void LaunchLoop::stop(int exit_code) {
  is_stopped_ = true;
  // Without this, run() would start all tasks again because of the lost port.
  const bool was_to_start_again = std::exchange(lost_port_, false);
  if (is_ending()) {
    // A task that got the same signal may have ended before this request was read.
    if (was_to_start_again || exit_code_ != 0) exit_code_ = exit_code;
    return;
  }
  if (options_.is_v1) return stop_v1(exit_code);
  Task* const chief = find(LocalCluster::chief());
  if (chief == nullptr || !chief->process) return end_all(exit_code, SIGTERM);
  exit_code_ = exit_code;
  kill_time_ = steady_clock::now() + options_.grace;
  chief->process->signal(SIGTERM);
}

void LaunchLoop::read_progress() {
  unsigned char percent = 0;
  while (::read(progress_.reader(), &percent, 1) == 1) percent_ = percent;
}

// Copies the output of the task, and records its end.
void LaunchLoop::collect(Task& task) {
  // This comes before the output is read, so that the last lines are read too.
  const auto exit = task.process->poll_exit();
  if (task.out_is_open) task.out_is_open = drain(task.process->stdout_fd(), task.out);
  if (task.err_is_open) task.err_is_open = drain(task.process->stderr_fd(), task.err);
  if (exit) {
    task.out.finish();
    task.err.finish();
  }
  note_output_error(task.out.error());
  note_output_error(task.err.error());
  if (!exit) return;
  task.process.reset();
  task.report.last_exit = *exit;
  if (task.is_chief()) {
    chief_ended(task, *exit);
  } else if (options_.is_v1) {
    v1_task_ended(task, *exit);
  } else if (!is_ending()) {
    cluster_.has_chief() ? server_ended(task, *exit) : worker_ended(task, *exit);
  }
}

void LaunchLoop::note_output_error(int error) {
  if (error == 0 || output_error_ != 0) return;
  output_error_ = error;
  say(std::string("a line of a ") + (cluster_.has_chief() ? "server" : "worker") +
      " could not be written: " + text_of_errno(error) +
      "; the program goes on, and the exit code will say so");
}

void LaunchLoop::run_planned(Time now) {
  if (kill_time_ && now >= *kill_time_) kill_all("did not end in time");
  if (is_ending()) return;
  if (failing_ && now >= failing_->time) {
    say(find(failing_->task)->error_origin +
        " has not ended by itself; ending all with exit code " +
        std::to_string(failing_->exit_code) + " of " + failing_->task.to_string());
    return end_all(failing_->exit_code, SIGTERM);
  }
  if (late_note_time_ && now >= *late_note_time_) say_who_is_late();
  if (late_time_ && now >= *late_time_) end_late_ones();
  if (is_ending()) return;
  std::erase_if(kills_, [&](const PlannedKill& kill) { return run_kill(kill, now); });
  for (const auto& task : tasks_) {
    if (!task->restart_time || now < *task->restart_time) continue;
    start_again(*task);
  }
}

// A start can fail because the system has no process left, or because the file of the program is
// being replaced. The tasks that run go on.
void LaunchLoop::start_again(Task& task) {
  const std::string name = task.report.task.to_string();
  task.restart_time.reset();
  try {
    start(task);
    say("started " + name + " again");
  } catch (const Error& error) {
    const bool fails = (task.is_chief() || !cluster_.has_chief()) && !can_restart(task);
    say(name + " cannot be started again: " + error.message() +
        (fails ? "; ending all" : plan_restart(task)));
    if (fails) end_all(task.report.last_exit.shell_code(), SIGTERM);
  }
}

bool LaunchLoop::run_kill(const PlannedKill& kill, Time now) {
  if (now < start_time_ + kill.after || percent_ < kill.at_percent) return false;
  Task& task = *find(kill.task);
  if (!task.process) return true;
  task.process->signal(SIGKILL);
  task.is_killed = true;
  ++task.report.kills;
  say("killed " + kill.to_string() +
      (can_restart(task) ? "; it starts again soon" : stays_away(task)));
  return true;
}

std::optional<LaunchLoop::Time> LaunchLoop::next_planned() const {
  std::optional<Time> next = kill_time_;
  const auto consider = [&next](Time time) { next = next ? std::min(*next, time) : time; };
  if (is_ending()) return next;
  if (failing_) consider(failing_->time);
  if (late_note_time_) consider(*late_note_time_);
  if (late_time_) consider(*late_time_);
  for (const PlannedKill& kill : kills_) {
    if (percent_ >= kill.at_percent) consider(start_time_ + kill.after);
  }
  for (const auto& task : tasks_) {
    if (task->restart_time) consider(*task->restart_time);
  }
  return next;
}

void LaunchLoop::end_all(int exit_code, int signal) {
  if (is_ending()) return;
  exit_code_ = exit_code;
  signal_all(signal);
}

void LaunchLoop::signal_all(int signal) {
  kill_time_ = steady_clock::now() + options_.grace;
  for (const auto& task : tasks_) {
    if (task->process) task->process->signal(signal);
  }
}

void LaunchLoop::kill_all(const std::string& reason) {
  kill_time_.reset();
  for (const auto& task : tasks_) {
    if (!task->process) continue;
    say(task->report.task.to_string() + " " + reason + "; killed");
    task->process->signal(SIGKILL);
  }
}

bool LaunchLoop::is_busy() const {
  return std::any_of(tasks_.begin(), tasks_.end(), [this](const auto& task) {
    return task->process != nullptr || (task->restart_time && !is_ending());
  });
}

LaunchLoop::Task* LaunchLoop::find(const TaskId& id) {
  for (const auto& task : tasks_) {
    if (task->report.task == id) return task.get();
  }
  return nullptr;
}

void LaunchLoop::say(const std::string& text) {
  LinePrefixer line("[launch] ", options_.err_fd, &stop_);
  line.write(text + "\n");
  if (output_error_ == 0) output_error_ = line.error();
}

}  // namespace cohort::cli
