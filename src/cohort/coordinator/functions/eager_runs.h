// SPDX-License-Identifier: Apache-2.0
// Closures that run on the thread that schedules them: no queue, no worker.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/coordinator/functions/eager_steps.h"
#include "cohort/coordinator/runtime/remote_state.h"
#include "cohort/coordinator/runtime/runtime_context.h"
#include "cohort/coordinator/workers/worker_pool.h"

namespace cohort::coordinator {

// Thread-safe: one closure runs at a time.
class EagerRuns {
 public:
  // Both must outlive it.
  EagerRuns(RuntimeContext& context, WorkerPool& pool)
      : context_(context), pool_(pool), steps_(context.strategy) {}

  // Runs a closure and sets its result or error; raise_error() throws the error again.
  void run(const Function& fn, const std::vector<Nest>& arguments, RemoteState& result);
  // Throws the first error of a closure that no call has thrown yet.
  void raise_error();
  // Runs the next step of an epoch: all elements of one worker after those of another. Returns
  // nullopt when all elements were used. Throws the step's error, or that of a closure that ran
  // beside the epoch, which ends the epoch as it does on workers.
  std::optional<EpochStep> next_step(EpochRun& epoch);
  // Forgets these iterators, if closures run eagerly.
  void release(const std::vector<std::uint64_t>& iterators);

 private:
  void raise_error_in(EpochRun& epoch);
  void count_end(const std::optional<Error>& error, const VariableTraffic& traffic)
      COHORT_REQUIRES(runtime_lock);

  RuntimeContext& context_;
  WorkerPool& pool_;
  EagerSteps steps_ COHORT_GUARDED_BY(context_.tracing);
  // The first error that no call has thrown yet.
  std::optional<Error> error_ COHORT_GUARDED_BY(runtime_lock);
};

}  // namespace cohort::coordinator
