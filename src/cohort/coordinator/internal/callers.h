// SPDX-License-Identifier: Apache-2.0
// What callers do: put a closure, wait for one or for all, and trace meanwhile what closures wait
// for.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string_view>

#include "cohort/coordinator/internal/closure_scheduler.h"
#include "cohort/coordinator/internal/dataset_programs.h"
#include "cohort/coordinator/internal/function_publisher.h"
#include "cohort/coordinator/internal/runtime_context.h"

namespace cohort::coordinator {

// Thread-safe.
class Callers {
 public:
  // How a caller waits.
  struct Wait {
    std::string_view call;  // for the error
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

  // Schedules a closure. Waits while the queue is full; throws its error.
  void put(PendingClosure&& pending);
  // False when `timeout` was too short. Throws deadline_exceeded, with one or without, when nothing
  // has ended for the data timeout.
  bool join(std::optional<Duration> timeout);
  bool done();
  // Until the closure of `state` has ended.
  void wait_for(const RemoteState& state, Deadline deadline);
  // Asks until the queue has a verdict; `ask` runs under the lock. Meanwhile this thread traces
  // what closures wait for, since only callers' threads may. At its deadline it gives up with
  // `wait`.
  Verdict settle(const Wait& how, const Ask& ask);

  // Has every end of a closure wake this thread while it lives.
  class FetcherCount {
   public:
    explicit FetcherCount(Callers& callers) : callers_(callers) { add(1); }
    ~FetcherCount() { add(-1); }
    FetcherCount(const FetcherCount&) = delete;
    FetcherCount& operator=(const FetcherCount&) = delete;

   private:
    void add(int change) {
      const RuntimeLock lock(callers_.context_);
      callers_.scheduler_.count_fetchers(change);
    }
    Callers& callers_;
  };

 private:
  class Turn;
  class Putting;

  Deadline progress_deadline() const COHORT_REQUIRES(runtime_lock) {
    return Deadline(context_.last_progress + context_.data_timeout);
  }
  void wait_for_change(const Wait& how) COHORT_REQUIRES(runtime_lock);
  [[noreturn]] void throw_stalled(const Wait& how) const COHORT_REQUIRES(runtime_lock);
  void trace_waiting();
  void trace_one(ClosureId closure);
  void end_trace(ClosureId closure, std::optional<Error> error) COHORT_REQUIRES(runtime_lock);

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
