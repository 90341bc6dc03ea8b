// SPDX-License-Identifier: Apache-2.0
// The table of the closure queue: who is queued, who is in flight, the first error, and cancel-all.
// Knows nothing of retries, classes of failure or which worker is free.
//
// The operations and their names are those of tf's _CoordinatedClosureQueue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <vector>

#include "cohort/coordinator/detail/closure_queue.h"

namespace cohort::coordinator::internal {

// Used only from ClosureQueue.
class ClosureTable {
 public:
  enum class Place : std::uint8_t { front, tail };

  ClosureTable(std::size_t capacity, std::size_t workers);

  // Callers: see ClosureQueue.
  Verdict put(ClosureId closure, Actions& actions);
  Verdict join(Actions& actions);
  Verdict done(Actions& actions);

  // A closure that `worker` alone may run, in the order of ids; it comes back to the same one when
  // it is retried. Counted and cancelled as others, whatever the capacity.
  // Raises after stop(); not while an error is set.
  Verdict put_on(WorkerId worker, ClosureId closure);
  // Such a closure is wanted no more: it ends as cancelled, at once where it is queued or held; one
  // that runs is to be cancelled on its worker, and ends so where it would be put back. Says
  // whether it was held.
  bool withdraw(ClosureId closure, Actions& actions);
  std::optional<ClosureId> take_own(WorkerId worker);

  // Resource closures belong to one worker. They ignore errors and capacity, are not counted and
  // not cancelled.
  void put_resource(WorkerId worker, ClosureId closure);

  // Workers. get and take say nothing when there is no closure; the others throw invalid_argument
  // for one that is not in flight. The next closure for `worker`, a resource closure of its own
  // first.
  std::optional<ClosureId> get(WorkerId worker, Actions& actions);
  // The same without resource closures: the retried ones in id order, then first in, first out.
  std::optional<ClosureId> take(WorkerId worker, Actions& actions);
  void finished(ClosureId closure, Actions& actions);
  // With an error set it is cancelled. The front is in id order, before all that never ran.
  void put_back(ClosureId closure, Place place, Actions& actions);
  // Only the first error is kept for the callers; each is its own closure's.
  void failed(ClosureId closure, const Error& error, Actions& actions);
  // In flight, but nothing runs: cancel-all does not wait for it.
  void hold(ClosureId closure);
  void resume(ClosureId closure);

  // Everything ends at once as cancelled, resource closures too; only raises `put` from now on.
  void stop(Actions& actions);

  // The closures that are running on `worker` or held for it, in id order.
  std::vector<ClosureId> on_worker(WorkerId worker) const;
  bool is_running(ClosureId closure, WorkerId worker) const;
  // Of a closure that is in flight: how often it was taken.
  std::uint32_t attempts(ClosureId closure) const { return entry(closure).attempts; }
  bool is_withdrawn(ClosureId closure) const { return entry(closure).is_withdrawn; }

  bool has_error() const { return error_.has_value(); }
  // From the first call that has seen the error until one has raised it.
  bool is_cancelling() const { return is_cancelling_; }
  std::size_t queued() const { return queued_for_any() + own_count_; }
  std::size_t queued_for_any() const { return queue_.size() + retried_.size(); }
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
    Phase phase = Phase::retired;
    bool is_own = false;  // of its worker alone
    bool is_withdrawn = false;
  };

  Entry& entry(ClosureId closure) { return entries_[closure & (entries_.size() - 1)]; }
  const Entry& entry(ClosureId closure) const { return entries_[closure & (entries_.size() - 1)]; }
  bool is_known(ClosureId closure) const { return closure >= base_ && closure < next_; }
  // Counts `closure` out of flight, or throws.
  Entry& leave_flight(ClosureId closure, const char* operation);
  void settle(Actions& actions);
  void accept(ClosureId closure);
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
  void start(ClosureId closure, WorkerId worker);

  std::size_t capacity_;
  std::deque<ClosureId> queue_;
  std::priority_queue<ClosureId, std::vector<ClosureId>, std::greater<>> retried_;
  std::vector<std::set<ClosureId>> own_;  // those of put_on(), by worker
  std::size_t own_count_ = 0;
  std::vector<std::deque<ClosureId>> resources_;  // by worker
  // The closures from base_ on, in a ring whose size is a power of two. All below base_ are
  // retired.
  std::vector<Entry> entries_;
  ClosureId base_ = 0;
  ClosureId next_ = 0;
  std::size_t running_ = 0;
  std::size_t held_ = 0;

  std::optional<Error> error_;
  bool is_cancelling_ = false;
  bool is_stopped_ = false;
  // Accepted by a put that has not returned yet: it waits until all is cancelled.
  std::vector<ClosureId> unanswered_;
  bool has_waiters_ = false;
  bool has_putters_ = false;
};

}  // namespace cohort::coordinator::internal
