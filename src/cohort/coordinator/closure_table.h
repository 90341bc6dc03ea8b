// SPDX-License-Identifier: Apache-2.0
// The table of the closure queue: which closures are queued and in flight, the first error, and
// cancel-all. It knows nothing of retries, classes of failure or free workers.
//
// The operations and their names are those of tf's _CoordinatedClosureQueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator::internal {

// Used only from ClosureQueue. Many methods because each transition of a closure, and each question
// that ClosureQueue asks about one, is a method: together they keep one set of invariants.
class ClosureTable {
 public:
  enum class Place : std::uint8_t { front, tail };

  ClosureTable(std::size_t capacity, std::size_t workers);

  // Callers: see ClosureQueue.
  Verdict put(ClosureId closure, Actions& actions, std::int32_t priority = 0);
  Verdict join(Actions& actions);
  Verdict done(Actions& actions);

  // A closure that only `worker` may run, by priority and id; a retry runs there, too. It is
  // counted and cancelled like others, but ignores the capacity. Raises after stop(). Do not call
  // it while an error is set.
  Verdict put_on(WorkerId worker, ClosureId closure, std::int32_t priority = 0);
  // Fails a closure with `why`: at once if it is queued or held. If it runs, it is cancelled on its
  // worker, and it fails instead of being put back. Returns whether it was held.
  bool withdraw(ClosureId closure, const Error& why, Actions& actions);
  // withdraw(), of a closure whose error join() and done() raise when everything has ended, unless
  // another one comes first. The other closures go on.
  bool expire(ClosureId closure, const Error& late, Actions& actions);
  std::optional<ClosureId> take_own(WorkerId worker);

  // Resource closures belong to one worker. They ignore errors and capacity; they are neither
  // counted nor cancelled.
  void put_resource(WorkerId worker, ClosureId closure);

  // Workers. get and take return nullopt if there is no closure; the others throw invalid_argument
  // for a closure that is not in flight.
  // get returns the next closure for `worker`, its own resource closures first.
  std::optional<ClosureId> get(WorkerId worker, Actions& actions);
  // The same without resource closures: the highest priority first, and of these the retried ones
  // in id order, then first in, first out.
  std::optional<ClosureId> take(WorkerId worker, Actions& actions);
  void finished(ClosureId closure, Actions& actions);
  // If an error is set, the closure is cancelled instead. Closures at the front are in id order,
  // before all of their priority that never ran.
  void put_back(ClosureId closure, Place place, Actions& actions);
  // The callers get only the first error, unless it is renewed; the closure itself always gets
  // `error`.
  void failed(ClosureId closure, const Error& error, Actions& actions);
  // The callers get `newer` instead of the first error, which is set.
  void renew_error(const Error& newer) { error_ = newer; }
  // The closure stays in flight, but nothing runs: cancel-all does not wait for it.
  void hold(ClosureId closure);
  void resume(ClosureId closure);

  // Cancels every closure at once, including resource closures. From now on `put` raises.
  void stop(Actions& actions);

  // The closures that are running on `worker` or held for it, in id order.
  std::vector<ClosureId> on_worker(WorkerId worker) const;
  bool is_running(ClosureId closure, WorkerId worker) const;
  // How often a closure that is in flight was taken.
  std::uint32_t attempts(ClosureId closure) const { return entry(closure).attempts; }
  bool is_withdrawn(ClosureId closure) const { return entry(closure).is_withdrawn; }

  bool has_error() const { return error_.has_value(); }
  // The one that the callers get.
  const std::optional<Error>& error() const { return error_; }
  // True from the first call that has seen the error until a call has raised it.
  bool is_cancelling() const { return is_cancelling_; }
  std::size_t queued() const { return queued_for_any() + own_count_; }
  std::size_t queued_for_any() const { return waiting_; }
  // The highest priority of those that any worker may run, and of those of `worker`; there is one.
  std::int32_t waiting_priority();
  std::int32_t own_priority(WorkerId worker) const { return own_[worker].begin()->priority; }
  bool has_own() const { return own_count_ > 0; }
  bool has_own(WorkerId worker) const { return !own_[worker].empty(); }
  std::size_t in_flight() const { return running_ + held_; }
  std::size_t held() const { return held_; }
  ClosureId low_watermark() const { return base_; }
  bool has_accepted(ClosureId closure) const { return closure < next_; }

 private:
  enum class Phase : std::uint8_t { retired, queued, running, held };
  struct Entry {
    WorkerId worker = 0;
    std::uint32_t attempts = 0;
    std::int32_t priority = 0;
    Phase phase = Phase::retired;
    bool is_own = false;  // only its worker may run it
    bool is_withdrawn = false;
  };

  // The closures of one priority that any worker may run.
  struct Level {
    std::deque<ClosureId> queue;  // also some that were withdrawn: not is_queued()
    std::set<ClosureId> retried;
  };
  using Levels = std::map<std::int32_t, Level, std::greater<>>;
  struct Own {
    std::int32_t priority;
    ClosureId closure;
    bool operator<(const Own& other) const {
      return priority != other.priority ? priority > other.priority : closure < other.closure;
    }
  };

  Entry& entry(ClosureId closure) { return entries_[closure & (entries_.size() - 1)]; }
  const Entry& entry(ClosureId closure) const { return entries_[closure & (entries_.size() - 1)]; }
  bool is_known(ClosureId closure) const { return closure >= base_ && closure < next_; }
  bool is_queued(ClosureId closure) const {
    return is_known(closure) && entry(closure).phase == Phase::queued;
  }
  // Removes `closure` from those in flight; throws if it is not one of them.
  Entry& leave_flight(ClosureId closure, const char* operation);
  void settle(Actions& actions);
  void accept(ClosureId closure, std::int32_t priority);
  void grow_to(std::size_t span);
  void retire(ClosureId closure);
  // Retires `closure` with an error.
  void fail(ClosureId closure, const Error& error, Actions& actions);

  Verdict wait();
  Verdict put_again(ClosureId closure, Actions& actions);
  Verdict cancel_all_and_raise(Actions& actions);
  void start_cancelling(Actions& actions);
  void drain(Actions& actions);
  void wake(Actions& actions);
  bool is_full() const { return capacity_ != 0 && queued_for_any() >= capacity_; }
  void enqueue_own(ClosureId closure);
  void leave_queue(ClosureId closure);
  Levels::iterator first_level();
  void wake_putters(Actions& actions);
  void start(ClosureId closure, WorkerId worker);

  std::size_t capacity_;
  Levels levels_;
  std::size_t waiting_ = 0;          // closures in them
  std::size_t withdrawn_count_ = 0;  // closures in their queues that were withdrawn
  std::vector<std::set<Own>> own_;   // those of put_on(), by worker
  std::size_t own_count_ = 0;
  std::vector<std::deque<ClosureId>> resources_;  // by worker
  // The closures from base_ on, in a ring whose size is a power of two. All closures below base_
  // are retired.
  std::vector<Entry> entries_;
  ClosureId base_ = 0;
  ClosureId next_ = 0;
  std::size_t running_ = 0;
  std::size_t held_ = 0;

  std::optional<Error> error_;
  std::optional<Error> late_error_;       // of the first closure that has expired
  std::map<ClosureId, Error> withdrawn_;  // of closures that run
  bool is_cancelling_ = false;
  bool is_stopped_ = false;
  // Closures whose put has not returned yet, since it waits until all are cancelled.
  std::vector<ClosureId> unanswered_;
  bool has_waiters_ = false;
  bool has_putters_ = false;
};

}  // namespace cohort::coordinator::internal
