// SPDX-License-Identifier: Apache-2.0
// A small language for tests: the events are calls, the resulting actions are returned as lines of
// text. Only tests use it.
//
//   EXPECT_EQ(queue.put(7), Lines({"dispatch 7 to 0"}));
#pragma once

#include <string>
#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator::internal {

using Lines = std::vector<std::string>;

inline std::string line_of(const Action& action) {
  const std::string closure = std::to_string(action.closure);
  const std::string worker = std::to_string(action.worker);
  switch (action.kind) {
    case Action::Kind::dispatch:
      return "dispatch " + closure + " to " + worker;
    case Action::Kind::complete:
      return "complete " + closure;
    case Action::Kind::fail:
      return "fail " + closure + " " + std::string(name_of(action.error->code()));
    case Action::Kind::cancel:
      return "cancel " + closure + " on " + worker;
    case Action::Kind::recover_worker:
      return "recover " + worker;
    case Action::Kind::wake_waiters:
      return "wake";
    case Action::Kind::need_program:
      return "trace for " + closure;
  }
  return "";
}

inline Lines lines_of(const Actions& actions) {
  Lines lines;
  for (const Action& action : actions) lines.push_back(line_of(action));
  return lines;
}

inline std::string word_of(const Verdict& verdict) {
  switch (verdict.kind) {
    case Verdict::Kind::proceed:
      return "proceed";
    case Verdict::Kind::no:
      return "no";
    case Verdict::Kind::wait:
      return "wait";
    case Verdict::Kind::trace:
      return "trace";
    case Verdict::Kind::raise:
      return "raise " + verdict.error->message();
  }
  return "";
}

inline Error bad_value(const std::string& message = "E") {
  return Error(ErrorCode::invalid_argument, message, ErrorCause::application);
}
inline Error connection_lost(const std::string& task) {
  return Error(ErrorCode::unavailable, "connection closed", ErrorCause::peer_lost).at(task);
}

// Feeds a queue with events; time advances only on request. Used only from one test. Many methods
// because it has one for each event of the queue.
class QueueScript {
 public:
  // All workers are ready at once.
  explicit QueueScript(std::size_t workers, QueueOptions options = {}) : queue_(options, workers) {
    for (WorkerId worker = 0; worker < workers; ++worker) ready(worker);
  }

  Lines put(ClosureId closure, std::int32_t priority = 0) {
    return asked(queue_.put(closure, actions_, priority));
  }
  Lines put_all(std::vector<ClosureId> closures) {
    Lines lines;
    for (const ClosureId closure : closures) {
      for (std::string& line : put(closure)) lines.push_back(std::move(line));
    }
    return lines;
  }
  Lines put_on(WorkerId worker, ClosureId closure, std::int32_t priority = 0) {
    return asked(queue_.put_on(worker, closure, actions_, priority));
  }
  Lines withdraw(ClosureId closure) { return (queue_.withdraw(closure, actions_), taken()); }
  Lines expire(ClosureId closure) {
    const Error late(ErrorCode::deadline_exceeded, "late " + std::to_string(closure));
    return (queue_.expire(closure, late, actions_), taken());
  }
  Lines join() { return asked(queue_.join(actions_)); }
  Lines done() { return asked(queue_.done(actions_)); }
  // The verdict of the last call.
  const std::string& verdict() const { return verdict_; }
  const Error& raised() const { return *raised_; }

  Lines ready(WorkerId worker) { return (queue_.worker_ready(worker, actions_), taken()); }
  Lines lost(WorkerId worker) {
    const Error error = connection_lost("worker:" + std::to_string(worker));
    return (queue_.worker_lost(worker, error, actions_), taken());
  }
  Lines ok(ClosureId closure, WorkerId worker) {
    return ended({closure, worker, Ended::Kind::ok, {}});
  }
  Lines cancelled(ClosureId closure, WorkerId worker) {
    return ended({closure, worker, Ended::Kind::cancelled, {}});
  }
  Lines failed(ClosureId closure, WorkerId worker, const Error& error = bad_value()) {
    return ended({closure, worker, Ended::Kind::failed, error});
  }
  Lines needs_program(ClosureId closure, WorkerId worker) {
    return ended({closure, worker, Ended::Kind::needs_program, {}});
  }
  Lines traced(ClosureId closure) { return (queue_.program_ready(closure, actions_), taken()); }
  Lines not_traced(ClosureId closure, const Error& error = bad_value()) {
    return (queue_.program_failed(closure, error, actions_), taken());
  }
  Lines set_in_flight(WorkerId worker, std::size_t limit) {
    return (queue_.set_in_flight(worker, limit, actions_), taken());
  }
  void pause() { queue_.pause(); }
  Lines resume() { return (queue_.resume(actions_), taken()); }
  Lines stop() { return (queue_.stop(actions_), taken()); }
  void advance(Duration duration) { now_ += duration; }

  const ClosureQueue& queue() const { return queue_; }
  const Actions& last_actions() const { return last_; }

 private:
  Lines ended(const Ended& end) { return (queue_.ended(end, now_, actions_), taken()); }
  Lines asked(Verdict verdict) {
    verdict_ = word_of(verdict);
    if (verdict.error) raised_ = verdict.error;
    return taken();
  }
  Lines taken() {
    last_ = std::move(actions_);
    actions_.clear();
    return lines_of(last_);
  }

  ClosureQueue queue_;
  TimePoint now_;
  Actions actions_;
  Actions last_;
  std::string verdict_;
  std::optional<Error> raised_;
};

}  // namespace cohort::coordinator::internal
