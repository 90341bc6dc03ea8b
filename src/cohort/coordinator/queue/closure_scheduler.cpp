// SPDX-License-Identifier: Apache-2.0
// Carries out the queue's decisions.
#include "cohort/coordinator/queue/closure_scheduler.h"

#include <algorithm>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/runtime/coordinator_options.h"
#include "cohort/core/random.h"

namespace cohort::coordinator {
namespace {

// More memory than this would fall out of the caches before it is used again.
constexpr std::size_t kActionsMax = 1024;

}  // namespace

ClosureScheduler::ClosureScheduler(RuntimeContext& context, WorkerPool& pool, OpenEpochs& epochs)
    : context_(context),
      pool_(pool),
      epochs_(epochs),
      sender_(context, pool, *this),
      queue_(internal::queue_options(context.options), context.connection.num_workers()) {}

void ClosureScheduler::give_back(Actions actions) {
  if (actions.capacity() <= kActionsMax) spare_actions_ = std::move(actions);
}

ClosureId ClosureScheduler::add(PendingClosure&& pending, TimePoint now) {
  if (queue_.in_flight() + queue_.queued() == 0) context_.last_progress = now;
  const ClosureId id = context_.numbers.next_closure++;
  pending_.add(id, std::move(pending));
  return id;
}

void ClosureScheduler::carry_out(Actions& actions) {
  if (actions.empty()) return;
  const TimePoint now = Clock::system().now();
  bool must_wake = false;
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
        must_wake = must_wake || fetchers_ > 0;
        break;
      case Action::Kind::fail:
        resolve(action.closure, action.error, now);
        must_wake = must_wake || fetchers_ > 0;
        break;
      case Action::Kind::cancel:
        sender_.add_cancel(action.worker, action.closure);
        break;
      case Action::Kind::recover_worker:
        recover(action.worker);
        must_wake = true;
        break;
      case Action::Kind::wake_waiters:
      case Action::Kind::need_program:
        must_wake = true;
        break;
    }
  }
  actions.clear();
  if (!refused.empty()) drop_refused(refused);
  if (must_wake) context_.changed.notify_all();
}

void ClosureScheduler::recover(std::uint32_t worker) {
  drop_unsent(worker);
  epochs_.check_orders(worker);
  pool_.begin_recovery(worker);
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
    const EpochRun* const epoch = found->in_epoch.run.get();
    for (const auto& [id, pending] : pending_.all())
      if (pending.in_epoch.run.get() == epoch && pending.connection == 0)
        queue_.withdraw(id, now, actions);
  }
  // Cancellations need not be sent, since no worker has received these closures.
  std::erase_if(actions, [](const Action& action) { return action.kind == Action::Kind::cancel; });
  for (const Action& one : refused) {
    queue_.ended({.closure = one.closure, .worker = one.worker, .kind = Ended::Kind::cancelled},
                 now, actions);
  }
  carry_out(actions);
}

std::optional<rpc::ClosureCall> ClosureScheduler::call_of(ClosureId closure) {
  PendingClosure* const pending = pending_.find(closure);
  if (pending == nullptr) return std::nullopt;
  rpc::ClosureCall call{.closure_id = closure,
                        .function_id = pending->function->id(),
                        .seed = mix_seed(context_.connection.options().seed, closure),
                        .inputs = pending->function->restored(pending->arguments)};
  // If values are missing, the worker asks for a program.
  static_cast<void>(pending->add_captured());
  call.inputs.insert(call.inputs.end(), pending->captured.begin(), pending->captured.end());
  for (const Nest& resource : pending->resources)
    call.resources.push_back(static_cast<const IteratorHandle&>(*resource.handle()).id());
  if (pending->in_epoch.run) call.epoch_step = pending->in_epoch.step;
  return call;
}

PendingClosures::Map ClosureScheduler::end_all(const Error& error) {
  for (std::uint32_t worker = 0; worker < pool_.size(); ++worker) drop_unsent(worker);
  PendingClosures::Map ended = pending_.take_all();
  for (auto& [id, pending] : ended) pending.abandon(error);
  Actions ignored;
  queue_.stop(ignored);
  return ended;
}

}  // namespace cohort::coordinator
