// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/closure_queue.h"

#include <algorithm>
#include <set>
#include <string>
#include <tuple>

#include "cohort/coordinator/closure_table.h"
#include "cohort/coordinator/workers/worker_loads.h"
#include "cohort/core/log.h"

namespace cohort::coordinator {
namespace {

using internal::ClosureTable;
using internal::WorkerLoads;

Error no_longer_wanted() {
  return Error(ErrorCode::cancelled,
               "[coordinator.run_epoch] cancelled because its epoch was given up",
               ErrorCause::cancelled_by_job);
}

// A task that was started again may refuse so many attempts before its loss is noticed.
Error started_too_often(ClosureId closure, std::uint32_t attempts, const Error& last) {
  const bool is_loss = last.cause() == ErrorCause::handle_lost;
  return Error(is_loss ? ErrorCode::unavailable : last.code(),
               "[coordinator.retry] closure " + std::to_string(closure) + " was started " +
                   std::to_string(attempts) + " times and never ended; the last error was: " +
                   last.message() + " (raise CoordinatorOptions::max_attempts to go on)",
               ErrorCause::application)
      .at(last.origin(), last.incarnation());
}

}  // namespace

struct ClosureQueue::State {
  // A closure whose program is missing, and the worker that still holds its element.
  struct Parked {
    ClosureId closure;
    std::optional<WorkerId> worker;
  };

  State(const QueueOptions& options, std::size_t workers)
      : max_attempts(options.max_attempts),
        table(options.capacity, workers),
        policy(options.failures, workers),
        loads(workers, options.in_flight_per_worker),
        returning(workers),
        had_own(workers) {}

  std::uint32_t max_attempts;
  int pauses = 0;
  ClosureTable table;
  FailurePolicy policy;
  WorkerLoads loads;
  std::vector<Parked> parked;
  // Closures that have their program and wait for a slot on the worker that holds their element.
  std::vector<std::set<ClosureId>> returning;
  std::size_t returning_count = 0;
  std::vector<char> had_own;  // whether the last closure that each worker got was its own
  // Which errors of which parameter servers each worker has met, so that each is logged once.
  std::set<std::tuple<WorkerId, std::string, ErrorCode, ErrorCause>> missed;
  // Why the closure that ended last runs again; nullopt if it does not.
  std::optional<Error> last_again;

  bool must_trace() const { return !table.has_error() && !parked.empty(); }

  // Forgets the waiting closures if cancel-all has ended all that were held without a slot.
  Verdict answer(Verdict verdict, Actions& actions) {
    if (table.held() == 0) {
      parked.clear();
      if (returning_count > 0) returning.assign(returning.size(), {});
      returning_count = 0;
    }
    dispatch(actions);
    return verdict;
  }

  void dispatch(Actions& actions) {
    if (table.is_cancelling() || pauses > 0) return;
    if (returning_count > 0) dispatch_returning(actions);
    if (table.has_own()) dispatch_own(actions);
    while (table.queued_for_any() > 0) {
      const std::optional<WorkerId> worker = loads.least_loaded();
      if (!worker) return;
      const std::optional<ClosureId> closure = table.take(*worker, actions);
      loads.add(*worker);
      had_own[*worker] = 0;
      actions.push_back({Action::Kind::dispatch, *closure, *worker, {}});
    }
  }

  void dispatch_returning(Actions& actions) {
    for (WorkerId worker = 0; worker < returning.size(); ++worker) {
      std::set<ClosureId>& waiting = returning[worker];
      while (!waiting.empty() && loads.has_slot(worker)) {
        const ClosureId closure = *waiting.begin();
        waiting.erase(waiting.begin());
        --returning_count;
        table.resume(closure);
        loads.add(worker);
        actions.push_back({Action::Kind::dispatch, closure, worker, {}});
      }
    }
  }

  bool takes_own(WorkerId worker) {
    if (table.queued_for_any() == 0) return true;
    const std::int32_t own = table.own_priority(worker);
    const std::int32_t any = table.waiting_priority();
    return own == any ? had_own[worker] == 0 : own > any;
  }

  // A worker takes its own closures and those of any worker in turn, since an epoch always has own
  // closures queued.
  void dispatch_own(Actions& actions) {
    for (WorkerId worker = 0; worker < loads.size(); ++worker) {
      while (table.has_own(worker) && loads.has_slot(worker)) {
        const bool is_own = takes_own(worker);
        const std::optional<ClosureId> closure =
            is_own ? table.take_own(worker) : table.take(worker, actions);
        loads.add(worker);
        had_own[worker] = is_own ? 1 : 0;
        actions.push_back({Action::Kind::dispatch, *closure, worker, {}});
      }
    }
  }

  void retry(ClosureId closure, ClosureTable::Place place, const Error& why, Actions& actions) {
    const std::uint32_t attempts = table.attempts(closure);
    if (!table.has_error() && !table.is_withdrawn(closure) && attempts >= max_attempts) {
      table.failed(closure, started_too_often(closure, attempts, why), actions);
    } else {
      table.put_back(closure, place, actions);
    }
  }

  void park(ClosureId closure, WorkerId worker, Actions& actions) {
    if (table.is_cancelling() || table.is_withdrawn(closure)) {
      table.put_back(closure, ClosureTable::Place::front, actions);
      return;
    }
    table.hold(closure);
    parked.push_back({closure, worker});
    actions.push_back({Action::Kind::need_program, closure, worker, {}});
    actions.push_back({Action::Kind::wake_waiters, 0, 0, {}});
  }

  std::optional<Parked> unpark(ClosureId closure) {
    const auto found = std::ranges::find(parked, closure, &Parked::closure);
    if (found == parked.end()) return std::nullopt;
    const Parked left = *found;
    parked.erase(found);
    return left;
  }

  // The closure waits neither for its program nor for a slot any more.
  void forget_held(ClosureId closure) {
    if (unpark(closure)) return;
    for (std::set<ClosureId>& waiting : returning) returning_count -= waiting.erase(closure);
  }

  // A parked closure stays parked when its worker is lost.
  bool leave_on_worker(ClosureId closure) {
    const auto found = std::ranges::find(parked, closure, &Parked::closure);
    if (found == parked.end()) return false;
    found->worker.reset();
    return true;
  }

  void lose(WorkerId worker, const Error& error, Actions& actions) {
    loads.set_lost(worker);
    returning_count -= returning[worker].size();
    returning[worker].clear();
    for (const ClosureId closure : table.on_worker(worker)) {
      if (!leave_on_worker(closure)) retry(closure, ClosureTable::Place::front, error, actions);
    }
    actions.push_back({Action::Kind::recover_worker, 0, worker, error});
  }

  void note_again(const Error& error, WorkerId worker) {
    last_again = error;
    if (!missed.emplace(worker, error.origin(), error.code(), error.cause()).second) return;
    log_warn("a closure runs again, since worker:", worker, " had an error of ", error.origin(),
             ": ", error.message());
  }

  void fail(const Ended& end, TimePoint now, Actions& actions) {
    const Error& error = *end.error;
    switch (policy.classify(error, table.is_cancelling(), now)) {
      case FailureClass::transient_ps:
        note_again(error, end.worker);
        [[fallthrough]];
      case FailureClass::transient_timeout:
      case FailureClass::cancelled_by_job:
        retry(end.closure, ClosureTable::Place::tail, error, actions);
        return;
      case FailureClass::worker_failure:
        lose(end.worker, error, actions);
        return;
      case FailureClass::application:
        break;
    }
    if (is_worker_failure(error)) {
      // This happens only during cancel-all. The other closures of the lost worker did not fail by
      // themselves, so they are cancelled.
      lose(end.worker, error, actions);
    } else if (const std::optional<int> ps = failed_ps(error)) {
      const Error lost = as_ps_unavailable(error, end.worker);
      // While callers wait until nothing runs any more, the server may come back. Its error then
      // explains more than that nobody listened before.
      if (table.error() && failed_ps(*table.error()) == ps) table.renew_error(lost);
      table.failed(end.closure, lost, actions);
    } else {
      table.failed(end.closure, error, actions);
    }
  }
};

ClosureQueue::ClosureQueue(QueueOptions options, std::size_t workers) {
  COHORT_CHECK(workers > 0, ErrorCode::invalid_argument,
               "[coordinator.queue] expected at least one worker, got none");
  COHORT_CHECK(options.in_flight_per_worker > 0, ErrorCode::invalid_argument,
               "[coordinator.queue] expected in_flight_per_worker > 0, got 0");
  COHORT_CHECK(options.max_attempts > 0, ErrorCode::invalid_argument,
               "[coordinator.queue] expected max_attempts > 0, got 0");
  state_ = std::make_unique<State>(options, workers);
}

ClosureQueue::~ClosureQueue() = default;

Verdict ClosureQueue::put(ClosureId closure, Actions& actions, std::int32_t priority) {
  if (state_->must_trace()) return {Verdict::Kind::trace, {}};
  return state_->answer(state_->table.put(closure, actions, priority), actions);
}

Verdict ClosureQueue::join(Actions& actions) {
  if (state_->must_trace()) return {Verdict::Kind::trace, {}};
  return state_->answer(state_->table.join(actions), actions);
}

Verdict ClosureQueue::done(Actions& actions) {
  if (state_->must_trace()) return {Verdict::Kind::trace, {}};
  return state_->answer(state_->table.done(actions), actions);
}

Verdict ClosureQueue::put_on(WorkerId worker, ClosureId closure, Actions& actions,
                             std::int32_t priority) {
  COHORT_ASSERT(worker < state_->loads.size());
  const Verdict verdict = state_->table.put_on(worker, closure, priority);
  state_->dispatch(actions);
  return verdict;
}

void ClosureQueue::withdraw(ClosureId closure, Actions& actions) {
  if (state_->table.withdraw(closure, no_longer_wanted(), actions)) state_->forget_held(closure);
  state_->dispatch(actions);
}

void ClosureQueue::expire(ClosureId closure, const Error& late, Actions& actions) {
  if (state_->table.expire(closure, late, actions)) state_->forget_held(closure);
  state_->dispatch(actions);
}

void ClosureQueue::pause() { ++state_->pauses; }

void ClosureQueue::resume(Actions& actions) {
  COHORT_ASSERT(state_->pauses > 0);
  if (--state_->pauses == 0) state_->dispatch(actions);
}

std::size_t ClosureQueue::running() const {
  return state_->table.in_flight() - state_->table.held();
}

bool ClosureQueue::has_error() const { return state_->table.has_error(); }
const std::optional<Error>& ClosureQueue::last_again() const { return state_->last_again; }

void ClosureQueue::worker_ready(WorkerId worker, Actions& actions) {
  COHORT_ASSERT(worker < state_->loads.size());
  if (state_->loads.is_ready(worker)) return;
  state_->loads.set_ready(worker);
  state_->dispatch(actions);
}

void ClosureQueue::worker_lost(WorkerId worker, const Error& error, Actions& actions) {
  COHORT_ASSERT(worker < state_->loads.size());
  if (!state_->loads.is_ready(worker)) return;
  state_->lose(worker, error, actions);
  state_->dispatch(actions);
}

void ClosureQueue::set_in_flight(WorkerId worker, std::size_t limit, Actions& actions) {
  COHORT_ASSERT(worker < state_->loads.size() && limit > 0);
  state_->loads.set_limit(worker, limit);
  state_->dispatch(actions);
}

void ClosureQueue::ended(const Ended& end, TimePoint now, Actions& actions) {
  COHORT_ASSERT(end.worker < state_->loads.size());
  COHORT_ASSERT(end.kind != Ended::Kind::failed || end.error);
  if (!state_->table.is_running(end.closure, end.worker)) return;
  state_->loads.remove(end.worker);
  switch (end.kind) {
    case Ended::Kind::ok:
      state_->last_again.reset();
      state_->table.finished(end.closure, actions);
      break;
    case Ended::Kind::cancelled:
      state_->retry(end.closure, ClosureTable::Place::tail,
                    Error(ErrorCode::cancelled, "its worker cancelled it"), actions);
      break;
    case Ended::Kind::needs_program:
      state_->park(end.closure, end.worker, actions);
      break;
    case Ended::Kind::failed:
      state_->fail(end, now, actions);
      break;
  }
  state_->dispatch(actions);
}

void ClosureQueue::program_ready(ClosureId closure, Actions& actions) {
  const std::optional<State::Parked> parked = state_->unpark(closure);
  if (!parked) return;
  if (const auto worker = parked->worker) {  // a copy, since g++ warns of the member at -O3
    state_->returning[*worker].insert(closure);
    ++state_->returning_count;
  } else {
    state_->table.put_back(closure, ClosureTable::Place::front, actions);
  }
  state_->dispatch(actions);
}

void ClosureQueue::program_failed(ClosureId closure, const Error& error, Actions& actions) {
  if (!state_->unpark(closure)) return;
  state_->table.failed(closure, error, actions);
  state_->dispatch(actions);
}

void ClosureQueue::stop(Actions& actions) {
  state_->table.stop(actions);
  state_->answer({}, actions);
}

ClosureId ClosureQueue::low_watermark() const { return state_->table.low_watermark(); }
std::size_t ClosureQueue::queued() const { return state_->table.queued(); }
std::size_t ClosureQueue::in_flight() const { return state_->table.in_flight(); }
bool ClosureQueue::is_running(ClosureId closure, WorkerId worker) const {
  return state_->table.is_running(closure, worker);
}
bool ClosureQueue::has_accepted(ClosureId closure) const {
  return state_->table.has_accepted(closure);
}
bool ClosureQueue::has_waiting_for_program() const { return !state_->parked.empty(); }

std::vector<ClosureId> ClosureQueue::waiting_for_program() const {
  std::vector<ClosureId> waiting;
  for (const State::Parked& parked : state_->parked) waiting.push_back(parked.closure);
  return waiting;
}

}  // namespace cohort::coordinator
