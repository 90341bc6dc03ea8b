// SPDX-License-Identifier: Apache-2.0
// The calls that schedule a closure, or wait for one or for all. While they wait, their threads
// trace the programs that closures need.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "cohort/coordinator/datasets/dataset_programs.h"
#include "cohort/coordinator/functions/function_publisher.h"
#include "cohort/coordinator/queue/closure_scheduler.h"
#include "cohort/coordinator/runtime/runtime_context.h"

namespace cohort::coordinator {

// Thread-safe.
class Callers {
 public:
  // For which call, how long and for what a caller waits.
  struct Wait {
    std::string_view call;  // its name, for the error
    Deadline deadline = {};
    Flush last = Flush::all;
    const RemoteState* awaited = nullptr;
    const EpochRun* epoch = nullptr;
  };
  using Ask = std::function<Verdict(Actions& actions)>;

  // All must outlive it.
  Callers(RuntimeContext& context, const WorkerPool& pool, ClosureScheduler& scheduler,
          FunctionPublisher& functions, DatasetPrograms& datasets)
      : context_(context),
        pool_(pool),
        scheduler_(scheduler),
        functions_(functions),
        datasets_(datasets) {}

  // Schedules closures, in this order. Waits while the queue is full. If it throws the queue's
  // error, those that it had not scheduled yet are dropped.
  void put(std::span<PendingClosure> pending);
  // The same for closures that only `worker` may run; the queue is never full for them.
  void put_on(std::uint32_t worker, std::span<PendingClosure> pending);
  // Returns false if `timeout` has passed. Throws deadline_exceeded, with a timeout or without, if
  // nothing has ended for the data timeout.
  bool join(std::optional<Duration> timeout);
  bool done();
  // No closure begins from now on, until as many calls of resume(). Waits until those that run have
  // ended. Throws as join() if they do not, naming the call, and then closures go on.
  void pause(std::string_view call);
  void resume();
  // Waits until the closure of `state` has ended.
  void wait_for(const RemoteState& state, Deadline deadline);
  // Asks until the queue has a verdict; `ask` runs under the lock. Meanwhile this thread traces for
  // closures that need a program, since only callers' threads may trace. Returns whether the caller
  // may proceed: false also after the deadline. Throws the queue's error, and deadline_exceeded if
  // no closure ends for the data timeout.
  bool settle(const Wait& how, const Ask& ask);

 private:
  class Turn;

  Deadline progress_deadline() const COHORT_REQUIRES(runtime_lock) {
    return Deadline(context_.last_progress + context_.data_timeout);
  }
  void wait_for_change(const Wait& how) COHORT_REQUIRES(runtime_lock);
  [[noreturn]] void throw_stalled(const Wait& how) const COHORT_REQUIRES(runtime_lock);
  void trace_waiting();
  void trace_one(ClosureId closure);

  RuntimeContext& context_;
  const WorkerPool& pool_;
  ClosureScheduler& scheduler_;
  FunctionPublisher& functions_;
  DatasetPrograms& datasets_;
  // One caller in schedule or join at a time (tf's put/wait lock).
  Mutex turn_mutex_;
  Condition turn_changed_;
  bool is_turn_taken_ COHORT_GUARDED_BY(turn_mutex_) = false;
  std::atomic<bool> was_fetch_short_{true};
};

}  // namespace cohort::coordinator
