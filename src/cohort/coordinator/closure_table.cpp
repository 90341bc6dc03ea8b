// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/closure_table.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

namespace cohort::coordinator::internal {
namespace {

constexpr std::size_t kFirstEntries = 16;
// Fewer withdrawn closures than this stay in the queues until they come first.
constexpr std::size_t kWithdrawnMax = 1024;
// Ids further apart than this are a caller's mistake, not a long queue.
constexpr std::uint64_t kSpanMax = std::uint64_t{1} << 30;

Error cancelled_by(const Error& first) {
  return Error(ErrorCode::cancelled,
               "[coordinator.schedule] cancelled because another closure failed (" +
                   std::string(name_of(first.code())) + ": " + first.message() +
                   "); schedule it again",
               ErrorCause::cancelled_by_job);
}

Verdict stopped_before() {
  return {Verdict::Kind::raise,
          Error(ErrorCode::cancelled,
                "[coordinator.schedule] expected a running coordinator, got one that was stopped; "
                "schedule before it is destroyed")};
}

}  // namespace

ClosureTable::ClosureTable(std::size_t capacity, std::size_t workers)
    : capacity_(capacity), own_(workers), resources_(workers), entries_(kFirstEntries) {}

Verdict ClosureTable::put_on(WorkerId worker, ClosureId closure, std::int32_t priority) {
  if (is_stopped_) return stopped_before();
  COHORT_ASSERT(closure >= next_ && !error_);
  accept(closure, priority);
  Entry& put = entry(closure);
  put.worker = worker;
  put.is_own = true;
  enqueue_own(closure);
  return {};
}

bool ClosureTable::withdraw(ClosureId closure, const Error& why, Actions& actions) {
  if (!is_known(closure)) return false;
  Entry& withdrawn = entry(closure);
  const Phase phase = withdrawn.phase;
  if (phase == Phase::retired) return false;
  const bool was_withdrawn = std::exchange(withdrawn.is_withdrawn, true);
  if (phase == Phase::running) {
    withdrawn_.emplace(closure, why);
    if (!was_withdrawn && !is_cancelling_)
      actions.push_back({Action::Kind::cancel, closure, withdrawn.worker, {}});
    return false;
  }
  phase == Phase::held ? void(--held_) : leave_queue(closure);
  fail(closure, why, actions);
  wake_putters(actions);
  settle(actions);
  return phase == Phase::held;
}

bool ClosureTable::expire(ClosureId closure, const Error& late, Actions& actions) {
  if (!is_known(closure) || entry(closure).phase == Phase::retired) return false;
  if (!late_error_) late_error_ = late;
  return withdraw(closure, late, actions);
}

// Searches the queue of no level: what stays there is left out when it comes first.
void ClosureTable::leave_queue(ClosureId closure) {
  const Entry& left = entry(closure);
  if (left.is_own) {
    own_[left.worker].erase({left.priority, closure});
    --own_count_;
    return;
  }
  --waiting_;
  if (levels_[left.priority].retried.erase(closure) > 0) return;
  if (++withdrawn_count_ <= std::max(kWithdrawnMax, waiting_)) return;
  for (auto& [priority, level] : levels_)
    std::erase_if(level.queue, [&](ClosureId each) { return each == closure || !is_queued(each); });
  withdrawn_count_ = 0;
}

void ClosureTable::enqueue_own(ClosureId closure) {
  const Entry& put = entry(closure);
  own_[put.worker].insert({put.priority, closure});
  ++own_count_;
}

std::optional<ClosureId> ClosureTable::take_own(WorkerId worker) {
  std::set<Own>& own = own_[worker];
  if (own.empty()) return std::nullopt;
  const ClosureId closure = own.begin()->closure;
  own.erase(own.begin());
  --own_count_;
  start(closure, worker);
  return closure;
}

Verdict ClosureTable::put(ClosureId closure, Actions& actions, std::int32_t priority) {
  if (is_stopped_) return stopped_before();
  if (closure < next_) return put_again(closure, actions);
  // Another caller is about to raise the error; this closure is put after that.
  if (is_cancelling_ && running_ > 0) return wait();
  if (!error_ && is_full()) {
    has_putters_ = true;
    return wait();
  }
  accept(closure, priority);
  levels_[priority].queue.push_back(closure);
  ++waiting_;
  if (!error_) return {};
  Verdict verdict = cancel_all_and_raise(actions);
  if (verdict.kind == Verdict::Kind::wait) unanswered_.push_back(closure);
  return verdict;
}

Verdict ClosureTable::put_again(ClosureId closure, Actions& actions) {
  const auto found = std::find(unanswered_.begin(), unanswered_.end(), closure);
  COHORT_CHECK(found != unanswered_.end(), ErrorCode::invalid_argument,
               "[coordinator.put] expected a closure id of at least ", next_, ", got ", closure,
               "; ids grow, and one caller at a time may put");
  // Without an error, another caller has raised it; this closure was cancelled nevertheless.
  Verdict verdict = error_ ? cancel_all_and_raise(actions) : Verdict{};
  if (verdict.kind != Verdict::Kind::wait) unanswered_.erase(found);
  return verdict;
}

Verdict ClosureTable::join(Actions& actions) {
  if (error_) return cancel_all_and_raise(actions);
  if (queued() + in_flight() > 0) return wait();
  return late_error_ ? Verdict{Verdict::Kind::raise, std::exchange(late_error_, {})} : Verdict{};
}

Verdict ClosureTable::done(Actions& actions) {
  if (error_) return cancel_all_and_raise(actions);
  return queued() + in_flight() == 0 ? join(actions) : Verdict{Verdict::Kind::no, {}};
}

void ClosureTable::put_resource(WorkerId worker, ClosureId closure) {
  resources_.at(worker).push_back(closure);
}

std::optional<ClosureId> ClosureTable::get(WorkerId worker, Actions& actions) {
  std::deque<ClosureId>& own = resources_.at(worker);
  if (own.empty()) return take(worker, actions);
  const ClosureId closure = own.front();
  own.pop_front();
  return closure;
}

// The level of the closure that is taken next; there is one. Only level 0 stays when it is empty.
ClosureTable::Levels::iterator ClosureTable::first_level() {
  for (auto level = levels_.begin();;) {
    COHORT_ASSERT(level != levels_.end());
    std::deque<ClosureId>& queue = level->second.queue;
    for (; !queue.empty() && !is_queued(queue.front()); queue.pop_front()) --withdrawn_count_;
    if (!queue.empty() || !level->second.retried.empty()) return level;
    level = level->first == 0 ? std::next(level) : levels_.erase(level);
  }
}

std::int32_t ClosureTable::waiting_priority() { return first_level()->first; }

std::optional<ClosureId> ClosureTable::take(WorkerId worker, Actions& actions) {
  if (waiting_ == 0) return std::nullopt;
  auto& [queue, retried] = first_level()->second;
  ClosureId closure = 0;
  if (!retried.empty()) {
    closure = *retried.begin();
    retried.erase(retried.begin());
  } else {
    closure = queue.front();
    queue.pop_front();
  }
  --waiting_;
  start(closure, worker);
  wake_putters(actions);
  return closure;
}

// Does not wake a waiting put for every free slot, which would cost a thread switch per closure.
void ClosureTable::wake_putters(Actions& actions) {
  if (has_putters_ && waiting_ < capacity_ - capacity_ / 16) wake(actions);
}

void ClosureTable::start(ClosureId closure, WorkerId worker) {
  Entry& taken = entry(closure);
  taken.worker = worker;
  taken.phase = Phase::running;
  ++taken.attempts;
  ++running_;
}

void ClosureTable::finished(ClosureId closure, Actions& actions) {
  leave_flight(closure, "finished");
  retire(closure);
  actions.push_back({Action::Kind::complete, closure, 0, {}});
  settle(actions);
}

void ClosureTable::put_back(ClosureId closure, Place place, Actions& actions) {
  Entry& returned = leave_flight(closure, "put_back");
  if (error_) {
    fail(closure, cancelled_by(*error_), actions);
  } else if (returned.is_withdrawn) {
    fail(closure, Error(withdrawn_.at(closure)), actions);
  } else {
    returned.phase = Phase::queued;
    if (returned.is_own) {
      enqueue_own(closure);
    } else {
      Level& level = levels_[returned.priority];
      place == Place::front ? void(level.retried.insert(closure)) : level.queue.push_back(closure);
      ++waiting_;
    }
  }
  settle(actions);
}

void ClosureTable::failed(ClosureId closure, const Error& error, Actions& actions) {
  leave_flight(closure, "failed");
  fail(closure, error, actions);
  if (!error_) {
    error_ = error;
    wake(actions);
  }
  settle(actions);
}

void ClosureTable::hold(ClosureId closure) {
  leave_flight(closure, "hold").phase = Phase::held;
  ++held_;
}

void ClosureTable::resume(ClosureId closure) {
  leave_flight(closure, "resume").phase = Phase::running;
  ++running_;
}

void ClosureTable::stop(Actions& actions) {
  const Error stopped(ErrorCode::cancelled,
                      "[coordinator.stop] the coordinator was stopped before this closure ended",
                      ErrorCause::cancelled_by_job);
  const ClosureId end = next_;
  for (ClosureId closure = base_; closure < end; ++closure) {
    const Entry left = entry(closure);
    if (left.phase == Phase::retired) continue;
    if (left.phase == Phase::running) {
      actions.push_back({Action::Kind::cancel, closure, left.worker, {}});
    }
    fail(closure, stopped, actions);
  }
  levels_.clear();
  waiting_ = withdrawn_count_ = 0;
  for (std::set<Own>& own : own_) own.clear();
  own_count_ = 0;
  for (std::deque<ClosureId>& own : resources_) own.clear();
  running_ = held_ = 0;
  error_.reset();
  late_error_.reset();
  is_cancelling_ = false;
  is_stopped_ = true;
  wake(actions);
}

std::vector<ClosureId> ClosureTable::on_worker(WorkerId worker) const {
  std::vector<ClosureId> found;
  for (ClosureId closure = base_; closure < next_; ++closure) {
    const Entry& e = entry(closure);
    const bool is_in_flight = e.phase == Phase::running || e.phase == Phase::held;
    if (is_in_flight && e.worker == worker) found.push_back(closure);
  }
  return found;
}

bool ClosureTable::is_running(ClosureId closure, WorkerId worker) const {
  if (!is_known(closure)) return false;
  const Entry& e = entry(closure);
  return e.phase == Phase::running && e.worker == worker;
}

ClosureTable::Entry& ClosureTable::leave_flight(ClosureId closure, const char* operation) {
  const Phase phase = is_known(closure) ? entry(closure).phase : Phase::retired;
  COHORT_CHECK(phase == Phase::running || phase == Phase::held, ErrorCode::invalid_argument,
               "[coordinator.", operation, "] expected a closure in flight, got ", closure,
               " with ", in_flight(), " in flight");
  --(phase == Phase::running ? running_ : held_);
  return entry(closure);
}

void ClosureTable::settle(Actions& actions) {
  if (is_cancelling_ && running_ == 0) drain(actions);
  if (queued() + in_flight() == 0) wake(actions);
}

void ClosureTable::accept(ClosureId closure, std::int32_t priority) {
  if (base_ == next_) base_ = next_ = closure;
  COHORT_CHECK(closure - base_ < kSpanMax, ErrorCode::invalid_argument,
               "[coordinator.put] expected a closure id near ", next_, ", got ", closure);
  grow_to(static_cast<std::size_t>(closure - base_) + 1);
  entry(closure) = {.priority = priority, .phase = Phase::queued};
  next_ = closure + 1;  // skipped ids were never put: ids outside base_ and next_ count as retired
}

void ClosureTable::grow_to(std::size_t span) {
  if (span <= entries_.size()) return;
  std::size_t size = entries_.size();
  while (size < span) size *= 2;
  std::vector<Entry> grown(size);
  for (ClosureId closure = base_; closure < next_; ++closure) {
    grown[closure & (size - 1)] = entry(closure);
  }
  entries_ = std::move(grown);
}

void ClosureTable::retire(ClosureId closure) {
  entry(closure).phase = Phase::retired;
  if (entry(closure).is_withdrawn) withdrawn_.erase(closure);
  while (base_ < next_ && entry(base_).phase == Phase::retired) ++base_;
}

void ClosureTable::fail(ClosureId closure, const Error& error, Actions& actions) {
  retire(closure);
  actions.push_back({Action::Kind::fail, closure, 0, error});
}

Verdict ClosureTable::wait() {
  has_waiters_ = true;
  return {Verdict::Kind::wait, {}};
}

Verdict ClosureTable::cancel_all_and_raise(Actions& actions) {
  if (!is_cancelling_) start_cancelling(actions);
  if (running_ > 0) return wait();
  drain(actions);
  Verdict verdict{Verdict::Kind::raise, std::move(error_)};
  error_.reset();
  late_error_.reset();
  is_cancelling_ = false;
  wake(actions);
  return verdict;
}

void ClosureTable::start_cancelling(Actions& actions) {
  is_cancelling_ = true;
  const Error cancelled = cancelled_by(*error_);
  const ClosureId end = next_;
  for (ClosureId closure = base_; closure < end; ++closure) {
    const Entry left = entry(closure);
    if (left.phase == Phase::running) {
      actions.push_back({Action::Kind::cancel, closure, left.worker, {}});
    } else if (left.phase == Phase::held) {
      --held_;
      fail(closure, cancelled, actions);
    }
  }
}

void ClosureTable::drain(Actions& actions) {
  if (queued() == 0) return;
  const Error cancelled = cancelled_by(*error_);
  for (const auto& [priority, level] : levels_) {
    for (const ClosureId closure : level.retried) fail(closure, cancelled, actions);
    for (const ClosureId closure : level.queue)
      if (is_queued(closure)) fail(closure, cancelled, actions);
  }
  levels_.clear();
  waiting_ = withdrawn_count_ = 0;
  for (std::set<Own>& own : own_) {
    for (const auto& [priority, closure] : own) fail(closure, cancelled, actions);
    own.clear();
  }
  own_count_ = 0;
}

void ClosureTable::wake(Actions& actions) {
  if (!has_waiters_) return;
  has_waiters_ = has_putters_ = false;
  actions.push_back({Action::Kind::wake_waiters, 0, 0, {}});
}

}  // namespace cohort::coordinator::internal
