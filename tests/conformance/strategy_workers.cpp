// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_workers.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <latch>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/cli/task_process.h"
#include "cohort/core/error.h"
#include "cohort/core/file_descriptor.h"
#include "cohort/rpc/reserved_port.h"
#include "tests/conformance/strategy_worker_process.h"

namespace cohort::conformance::strategy {
namespace {

using Clock = std::chrono::steady_clock;

// A cluster on free ports of the loopback. The ports are reserved as long as it exists.
class LocalWorkers {
 public:
  LocalWorkers(int count, bool has_chief) : ports_(static_cast<std::size_t>(count)) {
    for (const rpc::ReservedPort& port : ports_) {
      const bool is_chief = has_chief && tasks_.empty();
      const TaskId task{is_chief ? "chief" : "worker", static_cast<std::int64_t>(tasks_.size()) -
                                                           (has_chief && !is_chief ? 1 : 0)};
      tasks_.push_back(task);
      jobs_[task.job].push_back("127.0.0.1:" + std::to_string(port.number()));
    }
  }
  SimpleResolver resolver(std::size_t worker) const {
    const TaskId& task = tasks_[worker];
    return SimpleResolver(ClusterSpec(jobs_), {.task_type = task.job, .task_id = task.index});
  }
  // TF_CONFIG of this worker.
  std::string config(std::size_t worker) const {
    const TaskId& task = tasks_[worker];
    return Json{{"cluster", jobs_}, {"task", {{"type", task.job}, {"index", task.index}}}}.dump();
  }

 private:
  const std::vector<rpc::ReservedPort> ports_;
  std::vector<TaskId> tasks_;
  std::map<std::string, std::vector<std::string>> jobs_;
};

// --- threads ------------------------------------------------------------------------------------

Verdict run_threads(const Json& content, const LocalWorkers& workers, int count,
                    GroupBackend backend) {
  std::vector<Verdict> verdicts(static_cast<std::size_t>(count));
  std::latch have_ended(count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank) {
    threads.emplace_back([&, rank] {
      Verdict& own = verdicts[rank];
      const SimpleResolver resolver = workers.resolver(rank);
      std::unique_ptr<StrategyCase> test;
      try {
        test =
            std::make_unique<StrategyCase>(content, WorkerPlace{&resolver, rank, count, backend});
        own = run_steps(*test, content, [](std::size_t) {});
      } catch (const std::exception& error) {
        own = {Status::failed, error.what()};
      }
      if (own.status != Status::passed)
        own.text = "worker " + std::to_string(rank) + ", " + own.text;
      have_ended.arrive_and_wait();  // a worker that leaves earlier ends the group
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed = std::find_if(verdicts.begin(), verdicts.end(), [](const Verdict& each) {
    return each.status != Status::passed;
  });
  return failed == verdicts.end() ? Verdict{} : *failed;
}

// --- processes ----------------------------------------------------------------------------------

struct Channel {
  Channel() {
    int ends[2] = {-1, -1};
    COHORT_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0,
                 ErrorCode::resource_exhausted, "[conformance] no pair of sockets");
    here = FileDescriptor(ends[0]);
    there = FileDescriptor(ends[1]);
  }
  FileDescriptor here, there;
};

// A process that runs the case (strategy_worker_process.h says what they tell each other).
class RunningWorker {
 public:
  RunningWorker(std::size_t index, const LocalWorkers& workers, const WorkerOptions& options)
      : RunningWorker(index, workers, options, Channel()) {}

  bool is_ready() const { return is_ready_ || has_ended(); }
  // Whether it has said how the case went, or will never do so.
  bool is_decided() const { return verdict_.has_value() || has_ended(); }
  bool has_ended() const { return exit_.has_value(); }
  void tell(const std::string& line) {
    const std::string text = line + "\n";
    // A worker that has ended does not take it, which its end tells.
    for (std::size_t sent = 0; sent < text.size();) {
      const ssize_t count =
          ::send(orders_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
      if (count <= 0 && errno != EINTR) return;
      sent += count > 0 ? static_cast<std::size_t>(count) : 0;
    }
  }
  void let_go() { orders_ = FileDescriptor(); }

  void add_to(std::vector<pollfd>& events) const {
    events.push_back({is_out_open_ ? process_.stdout_fd() : -1, POLLIN, 0});
    events.push_back({is_err_open_ ? process_.stderr_fd() : -1, POLLIN, 0});
    events.push_back({has_ended() ? -1 : process_.exit_fd(), POLLIN, 0});
  }
  // Takes what has come. Its end is looked for first: all that it wrote is there by then.
  void take() {
    if (!has_ended()) exit_ = process_.poll_exit();
    is_out_open_ = is_out_open_ && take(process_.stdout_fd(), out_);
    is_err_open_ = is_err_open_ && take(process_.stderr_fd(), err_);
    for (std::size_t end = 0; (end = out_.find('\n')) != std::string::npos;) {
      understand(Json::parse(out_.substr(0, end)));
      out_.erase(0, end + 1);
    }
  }

  // Why this worker fails the case; empty: it passes. `may_die`: the case has a step `die`.
  std::string failure(std::chrono::milliseconds deadline, bool may_die) const {
    const std::string name = "worker " + std::to_string(index_) + ", ";
    if (verdict_ && verdict_->status != Status::passed) return name + verdict_->text;
    const std::string where = verdict_        ? "after its last step"
                              : step_.empty() ? "before its steps"
                                              : "at step " + step_;
    if (!has_ended())
      return name + where + ": no end within " + std::to_string(deadline.count()) + " ms";
    if (verdict_ && exit_->shell_code() == 0) return "";
    if (!verdict_ && may_die && exit_->shell_code() == kExitCodeOfDie) return "";
    return name + where + ": the process ended with " + exit_->to_string() +
           (err_.empty() ? "" : "\n  " + err_.substr(0, kMostErrorText));
  }

 private:
  static constexpr std::size_t kMostErrorText = 2000;

  RunningWorker(std::size_t index, const LocalWorkers& workers, const WorkerOptions& options,
                Channel channel)
      : index_(index),
        orders_(std::move(channel.here)),
        process_({.command = {options.program, "--worker", std::to_string(channel.there.get())},
                  .environment = {{"TF_CONFIG", workers.config(index)}, {"OMP_NUM_THREADS", "1"}},
                  .kept_fds = {channel.there.get()}}) {}

  // Returns false at the end of the output.
  static bool take(int fd, std::string& text) {
    char bytes[4096];
    for (;;) {
      const ssize_t count = ::read(fd, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) return count < 0 && errno == EAGAIN;
      text.append(bytes, static_cast<std::size_t>(count));
    }
  }
  void understand(const Json& line) {
    if (line.is_string()) is_ready_ = true;
    if (line.is_number()) step_ = std::to_string(line.get<std::size_t>());
    if (line.is_array()) verdict_ = {line.at(0).get<Status>(), line.at(1).get<std::string>()};
  }

  const std::size_t index_;
  FileDescriptor orders_;
  cli::TaskProcess process_;
  std::string out_, err_;
  bool is_out_open_ = true, is_err_open_ = true;
  bool is_ready_ = false;
  std::string step_;
  std::optional<Verdict> verdict_;
  std::optional<cli::ProcessExit> exit_;
};

class ProcessesOfACase {
 public:
  ProcessesOfACase(const Json& content, const LocalWorkers& workers, int count,
                   const WorkerOptions& options)
      : may_die_(has_step(member(content, "steps"), "die")),
        deadline_(options.deadline),
        until_(Clock::now() + options.deadline) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(count); ++rank)
      running_.push_back(std::make_unique<RunningWorker>(rank, workers, options));
    for (std::size_t rank = 0; rank < running_.size(); ++rank) {
      running_[rank]->tell(
          Json{{"case", content}, {"worker", rank}, {"count", count}, {"backend", options.backend}}
              .dump());
    }
  }

  Verdict run() {
    // They begin together: the timeout of a case is shorter than the start of a program may take.
    if (wait_for(&RunningWorker::is_ready)) {
      for (const auto& worker : running_) worker->tell("begin");
      // A worker that leaves earlier ends the group of the others.
      if (wait_for(&RunningWorker::is_decided)) {
        for (const auto& worker : running_) worker->let_go();
        wait_for(&RunningWorker::has_ended);
      }
    }
    Verdict all;
    for (const auto& worker : running_) {
      const std::string failure = worker->failure(deadline_, may_die_);
      if (failure.empty()) continue;
      all.text += (all.text.empty() ? "" : "\n  ") + failure;
      all.status = Status::failed;
    }
    return all;
  }

 private:
  // Until all are so; false if that takes too long.
  bool wait_for(bool (RunningWorker::*is_so)() const) {
    const auto are_all = [&] {
      return std::all_of(running_.begin(), running_.end(),
                         [is_so](const auto& worker) { return (worker.get()->*is_so)(); });
    };
    while (!are_all()) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(until_ - Clock::now()).count();
      if (left <= 0) return false;
      std::vector<pollfd> events;
      for (const auto& worker : running_) worker->add_to(events);
      ::poll(events.data(), events.size(), static_cast<int>(left));
      for (const auto& worker : running_) worker->take();
    }
    return true;
  }

  const bool may_die_;
  const std::chrono::milliseconds deadline_;
  const Clock::time_point until_;
  std::vector<std::unique_ptr<RunningWorker>> running_;
};

}  // namespace

Verdict run_workers(const Json& content, const WorkerOptions& options) {
  const Json& spec = member(content, "strategy");
  const int count = member(spec, "workers").get<int>();
  const LocalWorkers workers(count, spec.value("chief", false));
  if (!options.are_threads) return ProcessesOfACase(content, workers, count, options).run();
  if (has_step(member(content, "steps"), "die"))
    return {Status::skipped, "a worker that dies must be a process"};
  return run_threads(content, workers, count, options.backend);
}

}  // namespace cohort::conformance::strategy
