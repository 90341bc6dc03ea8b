// SPDX-License-Identifier: Apache-2.0
// Carries out the queue's decisions.
#include "cohort/coordinator/queue/closure_scheduler.h"

#include <sstream>
#include <string>
#include <utility>

#include "cohort/coordinator/runtime/coordinator_options.h"

namespace cohort::coordinator {
namespace {

// More memory than this would fall out of the caches before it is used again.
constexpr std::size_t kActionsMax = 1024;

Error forgotten_hyperparameter(const std::string& function) {
  return Error(
      ErrorCode::failed_precondition,
      "[coordinator.trace] '" + function +
          "' reads a hyperparameter that it did not read for the first element, and its "
          "value at schedule() is no longer known: it has been set more than 4096 times since; "
          "set it less often, join() in between, or give all elements one shape");
}

}  // namespace

ClosureScheduler::ClosureScheduler(RuntimeContext& context, WorkerPool& pool, OpenEpochs& epochs)
    : context_(context),
      pool_(pool),
      epochs_(epochs),
      queue_(internal::queue_options(context.options), context.connection.num_workers()),
      sender_(context, pool, queue_, pending_) {}

ClosureId ClosureScheduler::add(PendingClosure&& pending) {
  if (queue_.in_flight() + queue_.queued() == 0) context_.last_progress = Clock::system().now();
  const ClosureId id = context_.numbers.next_closure++;
  pending_.add(id, std::move(pending));
  return id;
}

Verdict ClosureScheduler::put(NewClosure& closure, Actions& actions) {
  awaited_room_.reset();
  if (closure.id == 0) {
    const std::uint64_t bytes = closure.pending.arguments.nbytes();
    if (!queue_.has_error() && !pending_.has_room_for(bytes, context_.options.queue_bytes)) {
      awaited_room_ = bytes;
      return {.kind = Verdict::Kind::wait};
    }
    closure.id = add(std::move(closure.pending));
  } else if (!closure.is_accepted && closure.id + 1 != context_.numbers.next_closure &&
             pending_.find(closure.id) != nullptr) {  // otherwise stop() has taken it
    // Ids grow, and a step of an epoch got one while this closure waited for room.
    const ClosureId id = context_.numbers.next_closure++;
    pending_.renumber(closure.id, id);
    closure.id = id;
  }
  const Verdict verdict = queue_.put(closure.id, actions, closure.priority);
  const bool was_accepted =
      std::exchange(closure.is_accepted, closure.is_accepted || queue_.has_accepted(closure.id));
  if (closure.is_accepted && !was_accepted) watch_deadline(closure.id, closure.deadline);
  return verdict;
}

void ClosureScheduler::forget_refused(const NewClosure& closure) {
  if (!closure.is_accepted) pending_.erase(closure.id);
}

Verdict ClosureScheduler::put_on(std::uint32_t worker, PendingClosure&& pending, Actions& actions) {
  const std::optional<ClosureDeadline> deadline = pending.deadline;
  const std::int32_t priority = pending.priority;
  const ClosureId id = add(std::move(pending));
  Verdict verdict = queue_.put_on(worker, id, actions, priority);
  verdict.kind == Verdict::Kind::proceed ? watch_deadline(id, deadline) : pending_.erase(id);
  return verdict;
}

void ClosureScheduler::watch_deadline(ClosureId closure,
                                      const std::optional<ClosureDeadline>& deadline) {
  if (!deadline) return;
  const bool is_first = deadline->at < deadlines_.first();
  deadlines_.add(closure, deadline->at);
  if (is_first) context_.deadlines_changed.notify_all();
}

Error ClosureScheduler::missed_deadline(ClosureId closure, const PendingClosure& pending) const {
  const std::string worker = "worker:" + std::to_string(pending.worker);
  const bool is_running = queue_.is_running(closure, pending.worker);
  std::ostringstream text;
  text << "[coordinator.schedule] expected closure " << closure << " of '"
       << pending.function->name() << "' to end within " << seconds_of(pending.deadline->after)
       << " s of its schedule(), got no end: it "
       << (is_running                  ? "runs on " + worker + ", which cancels it"
           : pending.waits_for_program ? "waits for a trace, with an element of " + worker
                                       : "waits for a worker")
       << "; raise ScheduleOptions::deadline, or schedule less at a time";
  Error error(ErrorCode::deadline_exceeded, text.str(), ErrorCause::application);
  return is_running ? std::move(error).at(worker) : error;
}

void ClosureScheduler::expire(TimePoint now) {
  const std::vector<ClosureId> passed = deadlines_.take_passed(now);
  if (passed.empty()) return;
  Actions actions = take_actions();
  for (const ClosureId closure : passed) {
    PendingClosure* const pending = pending_.find(closure);
    COHORT_ASSERT(pending != nullptr);
    const Error error = missed_deadline(closure, *pending);
    if (const std::shared_ptr<RemoteState> result = pending->result.lock()) result->fail(error);
    queue_.expire(closure, error, actions);
  }
  carry_out(std::move(actions));
  context_.changed.notify_all();
}

void ClosureScheduler::withdraw_steps(const EpochRun& epoch, Steps steps, Actions& actions) {
  for (const auto& [id, pending] : pending_.all()) {
    const bool is_meant = steps == Steps::all || pending.connection == 0;
    if (pending.in_epoch.run.get() == &epoch && is_meant) queue_.withdraw(id, actions);
  }
}

// Also adds the values that the new program captures, as they were at the closure's schedule().
void ClosureScheduler::end_trace(ClosureId closure, std::optional<Error> error) {
  // Until now the closure waited for this process, not for a task.
  context_.last_progress = Clock::system().now();
  PendingClosure* const pending = pending_.find(closure);
  const bool has_captured = error || pending == nullptr || pending->add_captured();
  if (!has_captured) error = forgotten_hyperparameter(pending->function->name());
  Actions actions;
  if (error) {
    queue_.program_failed(closure, *error, actions);
  } else {
    queue_.program_ready(closure, actions);
  }
  carry_out(std::move(actions));
}

void ClosureScheduler::carry_out(Actions actions) {
  const TimePoint now = actions.empty() ? TimePoint() : Clock::system().now();
  bool must_wake = false;
  const auto must_wake_callers = [this]() COHORT_REQUIRES(runtime_lock) {
    return fetchers_ > 0 ||
           (awaited_room_ && pending_.has_room_for(*awaited_room_, context_.options.queue_bytes));
  };
  Actions refused;
  for (Action& action : actions) {
    switch (action.kind) {
      case Action::Kind::dispatch: {
        const Dispatched dispatched = dispatch(action.closure, action.worker, now);
        must_wake = must_wake || dispatched != Dispatched::sent;
        if (dispatched == Dispatched::refused) refused.push_back(action);
        break;
      }
      case Action::Kind::complete:
        resolve(action.closure, std::nullopt, now);
        must_wake = must_wake || must_wake_callers();
        break;
      case Action::Kind::fail:
        resolve(action.closure, action.error, now);
        must_wake = must_wake || must_wake_callers();
        break;
      case Action::Kind::cancel:
        sender_.add_cancel(action.worker, action.closure);
        break;
      case Action::Kind::recover_worker:
        drop_unsent(action.worker);
        epochs_.check_orders(action.worker);
        pool_.begin_recovery(action.worker, *action.error);
        must_wake = true;
        break;
      case Action::Kind::wake_waiters:
      case Action::Kind::need_program:
        must_wake = true;
        break;
    }
  }
  actions.clear();
  const bool is_worth_keeping = actions.capacity() > spare_actions_.capacity();
  if (is_worth_keeping && actions.capacity() <= kActionsMax) spare_actions_ = std::move(actions);
  if (!refused.empty()) drop_refused(refused);
  if (must_wake) context_.changed.notify_all();
}

// Takes the closures that were not sent back from a lost worker's outbox.
void ClosureScheduler::drop_unsent(std::uint32_t worker) {
  for (const ClosureId closure : sender_.take_unsent(worker)) {
    PendingClosure* const pending = pending_.find(closure);
    if (pending != nullptr && pending->runs > 0) --pending->runs;
  }
}

ClosureScheduler::Dispatched ClosureScheduler::dispatch(ClosureId closure, std::uint32_t worker,
                                                        TimePoint now) {
  PendingClosure* const pending = pending_.find(closure);
  COHORT_ASSERT(pending != nullptr);
  const bool is_first_of_epoch = pending->connection == 0 && pending->in_epoch.run != nullptr;
  if (is_first_of_epoch && !pending->capture_for_step()) return Dispatched::refused;
  const std::uint64_t connection = pool_.link(worker).epoch;
  bool is_in_order = true;
  const bool is_resumed = std::exchange(pending->waits_for_program, false) &&
                          pending->worker == worker && pending->connection == connection;
  if (pending->connection != 0 && !is_resumed) {
    ++context_.totals.retries;
    pending->is_retried = true;
    if (pending->in_epoch.run) is_in_order = pending->in_epoch.run->check_order(worker);
  }
  ++pending->runs;
  pending->worker = worker;
  pending->connection = connection;
  sender_.add(worker, closure, now);
  return is_in_order ? Dispatched::sent : Dispatched::out_of_order;
}

void ClosureScheduler::resolve(ClosureId closure, const std::optional<Error>& error,
                               TimePoint now) {
  const auto found = pending_.locate(closure);
  if (found == pending_.end()) return;
  PendingClosure& pending = found->second;
  if (pending.deadline) deadlines_.erase(closure, pending.deadline->at);
  context_.last_progress = now;
  if (!pending.in_epoch.is_end) {
    context_.count_end(error, now);
    if (!error) pool_.count_closure(pending.worker);
  }
  if (error ? pending.runs > 0 : !pending.in_epoch.is_end) pending.counted.keep();
  if (pending.in_epoch.run) {
    pending.end_step(error);
  } else if (const std::shared_ptr<RemoteState> result = pending.result.lock()) {
    try {
      if (error) throw Error(*error);
      result->set(pending.function->result_of(std::move(pending.reported)));
    } catch (...) {  // also if the outputs do not fill the function's result
      result->fail(current_error());
    }
  }
  pending_.retire(found);
}

// Withdraws the steps of their epochs that were never sent, and frees the slots of the refused
// closures.
void ClosureScheduler::drop_refused(const Actions& refused) {
  const TimePoint now = Clock::system().now();
  Actions actions;
  for (const Action& one : refused) {
    const PendingClosure* const found = pending_.find(one.closure);
    COHORT_ASSERT(found != nullptr);
    withdraw_steps(*found->in_epoch.run, Steps::unsent, actions);
  }
  // Cancellations need not be sent, since no worker has received these closures.
  std::erase_if(actions, [](const Action& action) { return action.kind == Action::Kind::cancel; });
  for (const Action& one : refused) {
    queue_.ended({.closure = one.closure, .worker = one.worker, .kind = Ended::Kind::cancelled},
                 now, actions);
  }
  carry_out(std::move(actions));
}

PendingClosures::Map ClosureScheduler::end_all(const Error& error) {
  for (std::uint32_t worker = 0; worker < pool_.size(); ++worker) drop_unsent(worker);
  PendingClosures::Map ended = pending_.take_all();
  deadlines_.clear();
  for (auto& [id, pending] : ended) pending.abandon(error);
  Actions ignored;
  queue_.stop(ignored);
  return ended;
}

}  // namespace cohort::coordinator
