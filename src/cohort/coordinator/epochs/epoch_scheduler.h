// SPDX-License-Identifier: Apache-2.0
// Epochs: steps that belong to one worker each, numbered, and scheduled ahead of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/coordinator/epochs/epoch_run.h"
#include "cohort/coordinator/functions/callers.h"
#include "cohort/coordinator/functions/function_publisher.h"
#include "cohort/coordinator/queue/closure_scheduler.h"
#include "cohort/coordinator/runtime/runtime_context.h"

namespace cohort::coordinator {

// Throws invalid_argument for a function or data that an epoch cannot run.
void check_epoch(const Function& fn, const WorkerDatasets& datasets, std::size_t arguments);

// Thread-safe.
class EpochScheduler {
 public:
  // All must outlive it.
  EpochScheduler(RuntimeContext& context, OpenEpochs& epochs, ClosureScheduler& scheduler,
                 FunctionPublisher& functions, Callers& callers)
      : context_(context),
        epochs_(epochs),
        scheduler_(scheduler),
        functions_(functions),
        callers_(callers) {}

  // `arguments` were checked, and start with `iterator`, which makes `pass`; tensors are copied.
  // `snapshot`: what the steps read, or nullptr for the values of now.
  std::shared_ptr<EpochRun> begin(const Function& fn, const IteratorHandle& iterator,
                                  const Pass& pass, const std::vector<Nest>& arguments,
                                  std::shared_ptr<const ServerSnapshot> snapshot);
  // Schedules steps, waits until one has ended, and returns it; nullopt at the end of the epoch.
  std::optional<EpochStep> next_step(const std::shared_ptr<EpochRun>& epoch);
  // Returns a step that has ended, or nullopt at the end of the epoch, or throws its error. Does
  // not wait.
  std::optional<EpochStep> end_of(EpochRun& epoch);
  // Waits until no step of any epoch is open, so that all have made whole steps, and keeps it so
  // until release(). Epochs with an error stay as they are. Throws as next_step() does if no step
  // ends.
  void hold();
  void release() noexcept;
  // next_step() throws `why` from now on; nullopt if nobody will call it.
  void give_up(EpochRun& epoch, const std::optional<Error>& why) noexcept;

 private:
  std::optional<EpochStep> take_finished(EpochRun& epoch, bool& wants_steps);
  std::size_t open_steps_max(const EpochRun& epoch, std::uint32_t worker)
      COHORT_REQUIRES(runtime_lock);
  Verdict ask_for_step(const std::shared_ptr<EpochRun>& epoch,
                       const std::shared_ptr<StepFunction>& step, Actions& actions)
      COHORT_REQUIRES(runtime_lock);
  Verdict put_step(const std::shared_ptr<EpochRun>& epoch, std::uint32_t worker,
                   const std::shared_ptr<StepFunction>& step, Actions& actions)
      COHORT_REQUIRES(runtime_lock);

  RuntimeContext& context_;
  OpenEpochs& epochs_;
  ClosureScheduler& scheduler_;
  FunctionPublisher& functions_;
  Callers& callers_;
};

}  // namespace cohort::coordinator
