// SPDX-License-Identifier: Apache-2.0
// Owns the closure queue, the pending closures and their results, and carries out the queue's
// decisions.
//
// The thread on which an event happens (a caller's, a channel's, a recovery thread) feeds it to the
// queue under the lock and carries out the actions, so that no closure waits for another thread to
// wake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/coordinator/queue/closure_sender.h"
#include "cohort/coordinator/queue/pending_closures.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"

namespace cohort::coordinator {

// A closure that a caller puts into the queue.
struct NewClosure {
  PendingClosure& pending;  // until it has an id
  std::int32_t priority = 0;
  std::optional<ClosureDeadline> deadline = {};
  ClosureId id = 0;
  bool is_accepted = false;
};

// Thread-safe. Many methods because the events of callers, workers and time all change the closures
// that it owns.
class ClosureScheduler {
 public:
  // All must outlive the scheduler.
  ClosureScheduler(RuntimeContext& context, WorkerPool& pool, OpenEpochs& epochs);

  const ClosureQueue& queue() const COHORT_REQUIRES(runtime_lock) { return queue_; }
  const PendingClosures& pending() const COHORT_REQUIRES(runtime_lock) { return pending_; }

  // Events of callers: pass the resulting actions to carry_out().
  // May be called again with the same closure while the verdict is `wait`.
  Verdict put(NewClosure& closure, Actions& actions) COHORT_REQUIRES(runtime_lock);
  // Erases a closure that the queue did not accept, because it was full for too long or has
  // stopped.
  void forget_refused(const NewClosure& closure) COHORT_REQUIRES(runtime_lock);
  // Puts a closure that only `worker` may run.
  Verdict put_on(std::uint32_t worker, PendingClosure&& pending, Actions& actions)
      COHORT_REQUIRES(runtime_lock);
  Verdict join(Actions& actions) COHORT_REQUIRES(runtime_lock) { return queue_.join(actions); }
  Verdict done(Actions& actions) COHORT_REQUIRES(runtime_lock) { return queue_.done(actions); }
  // Withdraws the steps of an epoch; unsent: only those that were never sent.
  enum class Steps : std::uint8_t { all, unsent };
  void withdraw_steps(const EpochRun& epoch, Steps steps, Actions& actions)
      COHORT_REQUIRES(runtime_lock);
  void pause() COHORT_REQUIRES(runtime_lock) { queue_.pause(); }
  void resume() COHORT_REQUIRES(runtime_lock) {
    Actions actions = take_actions();
    queue_.resume(actions);
    carry_out(std::move(actions));
  }
  const ClosureDeadlines& deadlines() const COHORT_REQUIRES(runtime_lock) { return deadlines_; }
  // Ends the closures whose deadlines have passed. Their results have the error at once; those that
  // run are cancelled, and stay in flight until their workers have ended them.
  void expire(TimePoint now) COHORT_REQUIRES(runtime_lock);
  // The program that `closure` waits for was traced, or failed with `error`. Carries out the
  // actions itself.
  void end_trace(ClosureId closure, std::optional<Error> error) COHORT_REQUIRES(runtime_lock);
  // Takes reusable memory for actions; carry_out() returns it.
  Actions take_actions() COHORT_REQUIRES(runtime_lock) { return std::move(spare_actions_); }
  void carry_out(Actions actions) COHORT_REQUIRES(runtime_lock);
  // Sends the messages that carry_out() has prepared. Call it without the lock.
  void flush(Flush how = Flush::all) { sender_.flush(how); }
  bool has_unflushed() const COHORT_REQUIRES(runtime_lock) { return sender_.has_unflushed(); }

  std::size_t window_size(std::uint32_t worker) COHORT_REQUIRES(runtime_lock) {
    return sender_.window_size(worker);
  }
  // While a caller waits for one closure's result, every end of a closure wakes the callers.
  void count_fetchers(int change) COHORT_REQUIRES(runtime_lock) { fetchers_ += change; }

  // A worker's report, over the connection with this number.
  void on_completed(std::uint32_t worker, std::uint64_t connection, rpc::CompletedBatch batch);
  void worker_ready(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  void worker_lost(std::uint32_t worker, const Error& reason) COHORT_REQUIRES(runtime_lock);
  // Ends every closure with this error, for good. Destroy the result without the lock, since it may
  // hold the user's objects.
  PendingClosures::Map end_all(const Error& error) COHORT_REQUIRES(runtime_lock);

 private:
  // Returns the id of the new closure. Call it before the closure is given to the queue.
  ClosureId add(PendingClosure&& pending) COHORT_REQUIRES(runtime_lock);
  // out_of_order: it is sent, but its epoch has an error now; refused: its epoch has an error now,
  // and it is not sent.
  enum class Dispatched : std::uint8_t { sent, out_of_order, refused };
  Dispatched dispatch(ClosureId closure, std::uint32_t worker, TimePoint now)
      COHORT_REQUIRES(runtime_lock);
  void resolve(ClosureId closure, const std::optional<Error>& error, TimePoint now)
      COHORT_REQUIRES(runtime_lock);
  void watch_deadline(ClosureId closure, const std::optional<ClosureDeadline>& deadline)
      COHORT_REQUIRES(runtime_lock);
  Error missed_deadline(ClosureId closure, const PendingClosure& pending) const
      COHORT_REQUIRES(runtime_lock);
  void drop_refused(const Actions& refused) COHORT_REQUIRES(runtime_lock);
  void drop_unsent(std::uint32_t worker) COHORT_REQUIRES(runtime_lock);
  // Returns the error with which the connection must end if the report is impossible.
  std::optional<Error> on_end(std::uint32_t worker, rpc::ClosureEnd end, TimePoint now,
                              Actions& actions) COHORT_REQUIRES(runtime_lock);

  RuntimeContext& context_;
  WorkerPool& pool_;
  OpenEpochs& epochs_;
  ClosureQueue queue_ COHORT_GUARDED_BY(runtime_lock);
  PendingClosures pending_ COHORT_GUARDED_BY(runtime_lock);
  ClosureDeadlines deadlines_ COHORT_GUARDED_BY(runtime_lock);
  ClosureSender sender_;
  Actions spare_actions_ COHORT_GUARDED_BY(runtime_lock);
  int fetchers_ COHORT_GUARDED_BY(runtime_lock) = 0;
  // The bytes of the closure that waits in put() for room.
  std::optional<std::uint64_t> awaited_room_ COHORT_GUARDED_BY(runtime_lock);
};

// Text for errors: the worker that runs the closure of `awaited`, or else the workers that run
// closures or are away; and the number of closures in flight and queued.
std::string still_waiting_for(const ClosureScheduler& scheduler, const WorkerPool& pool,
                              const RemoteState* awaited) COHORT_REQUIRES(runtime_lock);
// The same for the workers for which an epoch waits.
std::string epoch_still_waiting_for(const EpochRun& epoch, const ClosureScheduler& scheduler,
                                    const WorkerPool& pool) COHORT_REQUIRES(runtime_lock);
// "worker:0 (away), worker:2 (away: why)".
std::string absent_workers(const WorkerPool& pool) COHORT_REQUIRES(runtime_lock);

}  // namespace cohort::coordinator
