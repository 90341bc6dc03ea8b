// SPDX-License-Identifier: Apache-2.0
// One pass over a dataset in which every element comes exactly once, also where workers are lost
// and return. ClusterCoordinator::run_epoch() makes one and runs it to its end; a loop of one's own
// takes its steps one by one:
//
//   Epoch epoch = coordinator.begin_epoch(step, data);
//   while (std::optional<EpochStep> done = epoch.next())
//     std::printf("%f\n", done->result.tensor().item<double>());
//   const EpochResult result = epoch.result();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"

namespace cohort {

namespace coordinator {
struct EpochRun;  // coordinator/internal/epoch_run.h
class Runtime;
}  // namespace coordinator

// A step that has ended well. A value type.
struct EpochStep {
  std::uint32_t worker = 0;
  std::uint64_t index = 0;  // of this worker's: 0, 1, …
  // The length of its element's first field's first dimension, which is the number of rows of a
  // batch; 1 for a scalar. The sum of them if it has drawn several elements.
  std::uint64_t examples = 0;
  // What the step returned. One that is repeated after a loss, whose first attempt had sent its
  // updates, computes it from later values of the variables; the updates count once.
  Nest result;
};

struct EpochOptions {
  // Called on the caller's thread for each step, in the order in which they end, as keras's
  // on_train_batch_end. It may call the coordinator. What it throws gives the epoch up.
  std::function<void(const EpochStep& step)> on_step = {};
};

// A value type.
struct EpochResult {
  std::uint64_t steps = 0;                      // that ended well: one an element
  std::vector<std::uint64_t> steps_per_worker;  // 0 for a worker without data
  std::uint64_t examples = 0;                   // of all steps
  // What the steps returned, with the structure of one result and each tensor or number in it
  // replaced: by its sum over the steps (int64 or float64), and by its mean (float64), in which a
  // step weighs as many times as it has examples, as keras weighs batches. So a step that returns
  // the mean of its batch gives the mean of all examples in `mean`, and one that returns a count
  // gives the total in `sum`. Null in the place of strings, and where the steps' shapes differ.
  Nest sum;
  Nest mean;
  Duration duration = Duration::zero();  // from the begin to the last step that was taken
};

// Used from one thread at a time. schedule(), fetch() and other epochs may be used beside it, also
// from other threads while next() waits: a worker takes its steps and other closures in turn. The
// strategy must outlive it. When it goes before its end, nothing is traced for it any more, and its
// steps are cancelled, also those that wait on their workers; one that runs there by then ends, and
// join() waits for it and throws its error. Optimizer::iterations() counts the steps that ran.
class COHORT_API Epoch {
 public:
  Epoch(std::shared_ptr<coordinator::Runtime> runtime, std::shared_ptr<coordinator::EpochRun> run);
  ~Epoch();
  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) = delete;

  // Keeps the workers busy, up to twice as many steps ahead as are in flight on each, while fewer
  // than 1024 steps have ended that it has not given yet. Gives the next step that has ended, in
  // the order of ends; nullopt when every worker's data has ended.
  //
  // An element whose step has ended never comes again. One whose worker is lost comes again on that
  // worker when it returns, to the same step with the same closure id, so that its updates count
  // once.
  //
  // A step gets the optimizers' hyperparameters, and its number in Optimizer::iterations(), when it
  // is sent to its worker for the first time. One that makes no updates, since it is cancelled
  // before it runs or finds the end of the data, leaves its number to the next step that is sent or
  // scheduled: no number is used twice. One that is known to find the end, as with
  // Dataset::cardinality(), takes none. Where the cardinality is not known, steps that find the end
  // hold numbers for a while. So if a learning rate is a schedule, each worker then has two steps
  // at a time, and a rate comes at most two steps a worker too early near the ends of the data.
  //
  // Throws the first application error, as join() does: an element that cannot be read, a step that
  // fails, also of closures that were scheduled beside it. All that waited is cancelled then, the
  // epoch has ended, and the coordinator is usable. out_of_range for a dataset without any element.
  // failed_precondition where a worker was lost and its elements may come in another order
  // (deterministic = false). data_loss where a file of its data, which the error names, has changed
  // since the epoch read it first (size or content; a copy with other times is the same), or where
  // its elements had another number when they were read again: begin the epoch again. A change
  // inside a file above 8 MiB may be missed, so files should not change during an epoch
  // (docs/decisions/0041-a-returning-worker-compares-its-files.md).
  // invalid_argument where a step's result has another structure than the first one's. cancelled
  // when the coordinator ends meanwhile. What the function of a learning rate throws, when the
  // steps before it have run and were given. deadline_exceeded when no step has ended for the data
  // timeout, naming the workers whose steps are missing; next() may be called again.
  std::optional<EpochStep> next();
  // Of the steps that next() has given.
  EpochResult result() const;

 private:
  class Metrics;
  std::shared_ptr<coordinator::Runtime> runtime_;
  std::shared_ptr<coordinator::EpochRun> run_;
  std::unique_ptr<Metrics> metrics_;
};

}  // namespace cohort
