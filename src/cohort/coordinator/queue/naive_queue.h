// SPDX-License-Identifier: Apache-2.0
// The simplest closure queue: lists that are searched from end to end, and no other state. Tests
// compare the real queue with it event by event.
#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/coordinator/queue/naive_policy.h"
#include "cohort/coordinator/queue/queue_script.h"

namespace cohort::coordinator::internal {

// Used only from one test. Many methods because it has those of the real queue and of its policy,
// whose model it is.
class NaiveQueue {
 public:
  enum class Where { queued, running, parked, traced, gone };
  struct Closure {
    Where where = Where::queued;
    std::optional<WorkerId> worker;
    std::optional<WorkerId> own;  // the only worker that may run it
    bool is_withdrawn = false;
    ErrorCode reason = ErrorCode::cancelled;  // with which it fails if it is withdrawn
    std::int32_t priority = 0;
    std::uint32_t starts = 0;
    // The smaller rank runs first: at the tail it is a running number, at the front minus infinity
    // and the id.
    std::pair<bool, std::uint64_t> rank;  // {is at the tail, number}
  };
  struct Worker {
    bool is_ready = false;
    std::uint64_t changed = 0;  // when its load changed or it got a free slot
    std::size_t limit = 0;
    bool had_own = false;  // whether its last closure was its own
  };

  NaiveQueue(QueueOptions options, std::size_t workers)
      : options_(options), workers_(workers), policy_(options.failures, workers) {
    for (Worker& worker : workers_) worker.limit = options.in_flight_per_worker;
  }

  std::string put(ClosureId id, std::int32_t priority = 0) {
    if (!error_ && count(Where::parked) > 0) return "trace";
    if (is_stopped_) return "raise stopped";
    const bool is_again = unanswered_.count(id) > 0;
    if (!is_again) {
      if (is_cancelling_ && count(Where::running) > 0) return "wait";
      if (!error_ && is_full()) return "wait";
      closures_[id].rank = {true, ++ticks_};
      closures_[id].priority = priority;
    }
    if (!error_) {
      unanswered_.erase(id);
      dispatch();
      return "proceed";
    }
    const std::string verdict = cancel_and_raise();
    verdict == "wait" ? void(unanswered_.insert(id)) : void(unanswered_.erase(id));
    return verdict;
  }

  std::string put_on(WorkerId worker, ClosureId id, std::int32_t priority = 0) {
    if (is_stopped_) return "raise stopped";
    closures_[id].own = worker;
    closures_[id].priority = priority;
    dispatch();
    return "proceed";
  }
  void withdraw(ClosureId id, ErrorCode reason = ErrorCode::cancelled) {
    const auto found = closures_.find(id);
    if (found == closures_.end()) return;
    Closure& closure = found->second;
    if (!closure.is_withdrawn) closure.reason = reason;
    const std::string name = std::to_string(id);
    const bool is_first = !std::exchange(closure.is_withdrawn, true);
    const bool is_running = closure.where == Where::running;
    if (is_running && is_first && !is_cancelling_)
      say("cancel " + name + " on " + std::to_string(*closure.worker));
    if (!is_running && closure.where != Where::gone)
      finish(id, "fail " + name + " " + std::string(name_of(reason)));
    dispatch();
  }
  void expire(ClosureId id, const Error& late) {
    const auto found = closures_.find(id);
    if (found == closures_.end() || found->second.where == Where::gone) return;
    if (!late_) late_ = late;
    withdraw(id, late.code());
  }
  bool has_error() const { return error_.has_value(); }

  std::string join() { return ask("wait"); }
  std::string done() { return ask("no"); }

  void set_in_flight(WorkerId worker, std::size_t limit) {
    const bool had_slot = has_slot(worker);
    workers_[worker].limit = limit;
    if (has_slot(worker) != had_slot) workers_[worker].changed = ++ticks_;
    dispatch();
  }

  void ready(WorkerId worker) {
    if (workers_[worker].is_ready) return;
    workers_[worker].is_ready = true;
    workers_[worker].changed = ++ticks_;
    dispatch();
  }

  void lost(WorkerId worker) {
    if (!workers_[worker].is_ready) return;
    lose(worker);
    dispatch();
  }

  void ended(ClosureId id, WorkerId worker, Ended::Kind kind, const std::optional<Error>& error,
             TimePoint now) {
    const auto found = closures_.find(id);
    if (found == closures_.end()) return;
    if (found->second.where != Where::running || found->second.worker != worker) return;
    workers_[worker].changed = ++ticks_;
    if (kind == Ended::Kind::ok) finish(id, "complete " + std::to_string(id));
    if (kind == Ended::Kind::cancelled) retry(id, false);
    if (kind == Ended::Kind::failed) failed(id, worker, *error, now);
    if (kind == Ended::Kind::needs_program) {
      if (is_cancelling_ || closures_[id].is_withdrawn) {
        retry(id, true);
      } else {
        closures_[id].where = Where::parked;
        say("trace for " + std::to_string(id));
      }
    }
    after();
    dispatch();
  }

  void traced(ClosureId id) {
    const auto found = closures_.find(id);
    if (found == closures_.end() || found->second.where != Where::parked) return;
    if (found->second.worker) {
      found->second.where = Where::traced;
    } else {
      put_back(id, true);
    }
    dispatch();
  }

  void not_traced(ClosureId id, const Error& error) {
    const auto found = closures_.find(id);
    if (found == closures_.end() || found->second.where != Where::parked) return;
    application(id, error);
    dispatch();
  }

  void stop() {
    for (auto& [id, c] : closures_) {
      const std::string name = std::to_string(id);
      if (c.where == Where::running) say("cancel " + name + " on " + std::to_string(*c.worker));
      if (c.where != Where::gone) finish(id, "fail " + name + " cancelled");
    }
    error_.reset();
    late_.reset();
    is_cancelling_ = false;
    is_stopped_ = true;
  }

  // All lines since the last call except wake-ups, sorted.
  Lines taken() {
    Lines lines = std::move(lines_);
    lines_.clear();
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  std::size_t count(Where where) const {
    return static_cast<std::size_t>(
        std::count_if(closures_.begin(), closures_.end(),
                      [&](const auto& c) { return c.second.where == where; }));
  }
  std::size_t in_flight() const {
    return count(Where::running) + count(Where::parked) + count(Where::traced);
  }
  ClosureId low_watermark() const {
    for (const auto& [id, closure] : closures_) {
      if (closure.where != Where::gone) return id;
    }
    return closures_.empty() ? 0 : closures_.rbegin()->first + 1;
  }
  std::vector<ClosureId> at(Where where) const {
    std::vector<ClosureId> found;
    for (const auto& [id, closure] : closures_) {
      if (closure.where == where) found.push_back(id);
    }
    return found;
  }
  WorkerId worker_of(ClosureId id) const { return *closures_.at(id).worker; }
  bool is_ready(WorkerId worker) const { return workers_[worker].is_ready; }
  // The verdict that a put would get now, without calling it.
  bool would_wait_to_put(ClosureId id) const {
    if (!error_) return count(Where::parked) == 0 && is_full() && !unanswered_.count(id);
    return count(Where::running) > 0;
  }
  bool would_wait_to_join() const {
    if (error_) return count(Where::running) > 0;
    return count(Where::parked) == 0 && in_flight() + count(Where::queued) > 0;
  }

 private:
  void say(std::string line) { lines_.push_back(std::move(line)); }
  bool is_full() const {
    const auto waits = [](const auto& c) {
      return c.second.where == Where::queued && !c.second.own;
    };
    const auto queued = std::count_if(closures_.begin(), closures_.end(), waits);
    return options_.capacity && static_cast<std::size_t>(queued) >= options_.capacity;
  }

  std::string ask(const std::string& otherwise) {
    if (error_) return cancel_and_raise();
    if (count(Where::parked) > 0) return "trace";
    if (in_flight() + count(Where::queued) > 0) return otherwise;
    const std::optional<Error> late = std::exchange(late_, std::nullopt);
    return late ? "raise " + late->message() : "proceed";
  }

  std::string cancel_and_raise() {
    if (!is_cancelling_) {
      is_cancelling_ = true;
      for (auto& [id, c] : closures_) {
        const std::string name = std::to_string(id);
        if (c.where == Where::running) say("cancel " + name + " on " + std::to_string(*c.worker));
        if (c.where == Where::parked || c.where == Where::traced)
          finish(id, "fail " + name + " cancelled");
      }
    }
    after();
    if (count(Where::running) > 0) return "wait";
    const std::string verdict = "raise " + error_->message();
    error_.reset();
    late_.reset();
    is_cancelling_ = false;
    return verdict;
  }

  // Cancels the queue if nothing runs any more.
  void after() {
    if (!is_cancelling_ || count(Where::running) > 0) return;
    for (const ClosureId id : at(Where::queued))
      finish(id, "fail " + std::to_string(id) + " cancelled");
  }

  void finish(ClosureId id, std::string line) {
    closures_[id].where = Where::gone;
    say(std::move(line));
  }

  // `lost_ps`: the parameter server of the error, if it is lost; callers get its newest error.
  void application(ClosureId id, const Error& error, const std::string& lost_ps = "") {
    finish(id, "fail " + std::to_string(id) + " " + std::string(name_of(error.code())));
    if (!error_ || (!lost_ps.empty() && lost_ps == lost_ps_)) {
      error_ = error;
      lost_ps_ = lost_ps;
    }
    after();
  }

  void put_back(ClosureId id, bool to_front) {
    if (error_ || closures_[id].is_withdrawn) {
      const ErrorCode reason = error_ ? ErrorCode::cancelled : closures_[id].reason;
      finish(id, "fail " + std::to_string(id) + " " + std::string(name_of(reason)));
    } else {
      Closure& closure = closures_[id];
      closure.where = Where::queued;
      closure.worker.reset();
      closure.rank = to_front ? std::pair(false, id) : std::pair(true, ++ticks_);
    }
    after();
  }

  void retry(ClosureId id, bool to_front, const Error& why = Error(ErrorCode::cancelled, "")) {
    const Closure& closure = closures_[id];
    if (!error_ && !closure.is_withdrawn && closure.starts >= options_.max_attempts) {
      application(id, Error(why.code(), "started too often"));
    } else {
      put_back(id, to_front);
    }
  }

  void lose(WorkerId worker, const Error& why = connection_lost("worker")) {
    workers_[worker].is_ready = false;
    for (auto& [id, closure] : closures_) {
      if (closure.worker != worker) continue;
      if (closure.where == Where::parked) closure.worker.reset();
      if (closure.where == Where::running || closure.where == Where::traced) retry(id, true, why);
    }
    say("recover " + std::to_string(worker));
    after();
  }

  void failed(ClosureId id, WorkerId worker, const Error& error, TimePoint now) {
    switch (policy_.decide(error, now)) {
      case NaivePolicy::Then::again:
        return retry(id, false, error);
      case NaivePolicy::Then::lose_worker:
        return lose(worker, error);
      case NaivePolicy::Then::fail_of_ps:
        return application(id, as_ps_unavailable(error, worker), error.origin());
      case NaivePolicy::Then::fail:
        return application(id, error);
    }
  }

  std::size_t load(WorkerId worker) const {
    return static_cast<std::size_t>(
        std::count_if(closures_.begin(), closures_.end(), [&](const auto& c) {
          return c.second.where == Where::running && c.second.worker == worker;
        }));
  }

  bool has_slot(WorkerId worker) const { return load(worker) < workers_[worker].limit; }

  void start(ClosureId id, WorkerId worker) {
    closures_[id].where = Where::running;
    closures_[id].worker = worker;
    workers_[worker].changed = ++ticks_;
    say("dispatch " + std::to_string(id) + " to " + std::to_string(worker));
  }

  void dispatch() {
    if (is_cancelling_) return;
    for (const ClosureId id : at(Where::traced)) {
      if (has_slot(worker_of(id))) start(id, worker_of(id));
    }
    for (WorkerId worker = 0; worker < workers_.size(); ++worker) {
      while (workers_[worker].is_ready && has_slot(worker)) {
        const std::vector<ClosureId> own = queued_for(worker);
        if (own.empty()) break;
        const std::vector<ClosureId> others = queued_for({});
        const bool is_own = others.empty() || takes_own(worker, first_of(own), first_of(others));
        start_queued(first_of(is_own ? own : others), worker);
        workers_[worker].had_own = is_own;
      }
    }
    while (true) {
      std::optional<WorkerId> best;
      const auto key = [&](WorkerId w) { return std::pair(load(w), workers_[w].changed); };
      for (WorkerId w = 0; w < workers_.size(); ++w) {
        if (!workers_[w].is_ready || !has_slot(w)) continue;
        if (!best || key(w) < key(*best)) best = w;
      }
      const std::vector<ClosureId> waiting = queued_for({});
      if (!best || waiting.empty()) return;
      start_queued(first_of(waiting), *best);
      workers_[*best].had_own = false;
    }
  }

  // The closures of put_on(worker), or, with nullopt, those that any worker may run.
  std::vector<ClosureId> queued_for(std::optional<WorkerId> worker) const {
    std::vector<ClosureId> queued = at(Where::queued);
    std::erase_if(queued, [&](ClosureId id) { return closures_.at(id).own != worker; });
    return queued;
  }
  ClosureId first_of(const std::vector<ClosureId>& queued) const {
    const auto key = [&](ClosureId id) {
      const Closure& closure = closures_.at(id);
      return std::pair(~closure.priority, closure.own ? std::pair(false, id) : closure.rank);
    };
    return *std::min_element(queued.begin(), queued.end(),
                             [&](ClosureId a, ClosureId b) { return key(a) < key(b); });
  }
  bool takes_own(WorkerId worker, ClosureId own, ClosureId other) const {
    const std::int32_t more = closures_.at(other).priority;
    const std::int32_t mine = closures_.at(own).priority;
    return mine == more ? !workers_[worker].had_own : mine > more;
  }
  void start_queued(ClosureId id, WorkerId worker) {
    ++closures_[id].starts;
    start(id, worker);
  }

  QueueOptions options_;
  std::vector<Worker> workers_;
  std::map<ClosureId, Closure> closures_;
  std::set<ClosureId> unanswered_;
  std::optional<Error> error_;
  std::string lost_ps_;  // of error_
  std::optional<Error> late_;
  bool is_cancelling_ = false;
  std::uint64_t ticks_ = 0;
  bool is_stopped_ = false;
  NaivePolicy policy_;
  Lines lines_;
};

}  // namespace cohort::coordinator::internal
