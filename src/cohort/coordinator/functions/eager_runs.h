// SPDX-License-Identifier: Apache-2.0
// Closures that run in the coordinator's process, on the thread that schedules them: no trace, no
// queue, no worker (CoordinatorOptions::run_eagerly).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/coordinator/queue/closure_queue.h"
#include "cohort/coordinator/runtime/remote_state.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"
#include "cohort/data/iterator.h"
#include "cohort/function/function.h"
#include "cohort/variable/eager_step.h"

namespace cohort::coordinator {

// Keeps the workers' iterators between closures. Thread-safe: one closure runs at a time.
class EagerRuns {
 public:
  // Both must outlive it.
  EagerRuns(RuntimeContext& context, WorkerPool& pool) : context_(context), pool_(pool) {}

  // Runs a closure in the place of a worker, and sets its result or error; raise_error() throws the
  // error again.
  void run(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker,
           RemoteState& result);
  // Throws the first error of a closure that no call has thrown yet.
  void raise_error();
  // Runs the next step of an epoch: all elements of one worker after those of another. Returns
  // nullopt when all elements were used. Throws the step's error, or that of a closure that ran
  // beside the epoch, which ends the epoch as it does on workers.
  std::optional<EpochStep> next_step(EpochRun& epoch);
  // Forgets these iterators, if closures run eagerly.
  void release(const std::vector<std::uint64_t>& iterators);

 private:
  class Elements;
  struct EagerIterator {
    std::shared_ptr<Iterator> iterator;
    Elements* elements = nullptr;    // owned by `iterator`
    std::optional<Nest> value = {};  // of a per-worker value, if it was made
  };

  void raise_error_in(EpochRun& epoch);
  void count_end(const std::optional<Error>& error) COHORT_REQUIRES(runtime_lock, context_.tracing);
  // Runs a closure on the next element of `worker`; the first argument is the iterator. Returns
  // nullopt at the end of the data. The number of the step is not set.
  std::optional<EpochStep> run_next(const EpochRun& epoch, ClosureId closure, std::uint32_t worker)
      COHORT_REQUIRES(context_.tracing);
  // Runs a closure on elements of `worker`. Throws the error that a worker would report.
  Nest run_as(const Function& fn, const std::vector<Nest>& arguments, ClosureId closure,
              std::uint32_t worker) COHORT_REQUIRES(context_.tracing);
  Nest call(const Function& fn, const std::vector<Nest>& arguments, std::uint32_t worker)
      COHORT_REQUIRES(context_.tracing);
  EagerIterator& iterator_of(const IteratorHandle& handle, std::uint32_t worker)
      COHORT_REQUIRES(context_.tracing);

  RuntimeContext& context_;
  WorkerPool& pool_;
  // Traffic of the closures since count_end(), including that of failed ones.
  VariableTraffic traffic_ COHORT_GUARDED_BY(context_.tracing);
  // By id and worker.
  std::map<std::pair<std::uint64_t, std::uint32_t>, EagerIterator> iterators_
      COHORT_GUARDED_BY(context_.tracing);
  // The first error that no call has thrown yet.
  std::optional<Error> error_ COHORT_GUARDED_BY(runtime_lock);
};

}  // namespace cohort::coordinator
