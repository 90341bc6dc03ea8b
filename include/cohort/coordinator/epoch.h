// SPDX-License-Identifier: Apache-2.0
// One pass over a dataset in which every element is used exactly once, even if workers are lost and
// return. ClusterCoordinator::run_epoch() runs a whole epoch; with begin_epoch(), your own loop
// takes the steps one by one:
//
//   Epoch epoch = coordinator.begin_epoch(step, data);
//   while (std::optional<EpochStep> done = epoch.try_next())
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
struct EpochRun;  // coordinator/epochs/epoch_run.h
class Runtime;
}  // namespace coordinator

// A step that succeeded. A value type.
struct EpochStep {
  std::uint32_t worker = 0;
  std::uint64_t index = 0;  // counts the steps of this worker: 0, 1, …
  // The size of the first dimension of the first field of its element, which is the number of rows
  // of a batch; 1 for a scalar. If the step drew several elements, their sum.
  std::uint64_t examples = 0;
  // The return value of the step. If a worker was lost after the step had sent its updates, the
  // step runs again: the result is then computed from later values of the variables (except with
  // EpochOptions::reads_snapshot), but the updates count once. A number in it has the value of the
  // trace, so a step that returns x.size(0) as a number is refused (invalid_argument) if the last
  // batch is short. Return a tensor:
  //
  //   Function with_rows([](Iterator& it) {
  //     const at::Tensor x = it.next<at::Tensor>();
  //     const at::Tensor rows = torch::scalar_tensor(x.size(0), torch::kLong);
  //     return Nest::map({{"mean", x.mean()}, {"rows", rows}});
  //   });
  Nest result;
};

struct EpochOptions {
  // run_epoch() calls it on the caller's thread for each step, in the order in which the steps end
  // (keras's on_train_batch_end). It may call the coordinator. If it throws, the epoch ends with
  // that error.
  std::function<void(const EpochStep& step)> on_step = {};
  // All steps read the values that variables and tables have at one moment when the epoch begins,
  // whatever closures update later, and however often a step runs. The moment is when the closures
  // that run then have ended; those that wait begin after it. So call join() before, if all that
  // were scheduled shall count. While the epoch begins, no other thread may change variables
  // outside of closures.
  //
  // It costs memory of the servers, at most that of the values which the steps read: the first
  // update of a variable during the epoch keeps its old value, whole, also if it changes some rows;
  // the rows of tables are copied at the beginning, without their slots, while closures wait.
  //
  // A step may not read a variable that it updates, such as the sums of a metric; and it reads the
  // same variables for elements of all shapes. Otherwise the epoch throws failed_precondition. It
  // throws unavailable if a server is started again, and unimplemented with
  // CoordinatorOptions::run_eagerly. Variable::wait_until_positive() waits for the value of now.
  bool reads_snapshot = false;
};

// A value type.
struct EpochResult {
  std::uint64_t steps = 0;                      // steps that succeeded: one per element
  std::vector<std::uint64_t> steps_per_worker;  // 0 for a worker without data
  std::uint64_t examples = 0;                   // of all steps
  // The sum over all steps. It has the structure of one step's result; each tensor or number is
  // replaced by its sum as int64 or float64. If a step returns a count, this is the total. Null in
  // place of strings, and of values whose shape differs between steps.
  Nest sum;
  // The mean over all steps, as float64, with the same structure. Each step is weighted by its
  // `examples`, as keras weights batches: if a step returns the mean of its batch, this is the mean
  // over all examples. If every batch was empty, `examples` is 0 and all numbers in it are NaN.
  Nest mean;
  Duration duration = Duration::zero();  // from the start to the last step that try_next() returned
};

// Used from one thread at a time. Meanwhile, and on other threads also while try_next() waits, you
// may call schedule() and fetch() and run other epochs: a worker alternates between steps of an
// epoch and other closures. The strategy must outlive the epoch.
//
// If it is destroyed before its end, its steps are cancelled, including those that wait on their
// workers, and the step is not traced for it any more. A step that is running finishes; join()
// waits for it and throws its error.
// Optimizer::iterations() counts the steps that ran. It also counts steps that were sent to a
// worker which was lost by then, since they may have run
// (docs/decisions/0034-learning-rates-follow-scheduled-steps.md).
class COHORT_API Epoch {
 public:
  Epoch(std::shared_ptr<coordinator::Runtime> runtime, std::shared_ptr<coordinator::EpochRun> run);
  ~Epoch();
  Epoch(Epoch&&) noexcept;
  Epoch& operator=(Epoch&&) = delete;

  // Returns the next step that has ended, in the order in which the steps end; nullopt after the
  // data of every worker has ended. It schedules steps ahead, at most twice as many per worker as
  // the worker has in flight, and none while 1024 results wait for try_next().
  //
  // The element of a step that has ended is never used again. If a worker is lost, the elements of
  // its other steps wait until it returns. They are then used by the same steps with the same
  // closure ids, so that their updates count once.
  //
  // A step gets the optimizers' hyperparameters and its number in Optimizer::iterations() when it
  // is first sent to its worker. If a step makes no updates, because it is cancelled or finds the
  // end of the data, its number goes to the next step that is sent or scheduled. If
  // Dataset::cardinality() is unknown, the number is free only when the worker has reported the
  // end. So if a learning rate is a schedule, each worker then has only two steps at a time. Near
  // the end of the data, the number of a step may be too high, by up to two per worker.
  //
  // Throws
  // - the first application error, as join() does: an element that cannot be read, or a step that
  //   fails, including closures that were scheduled meanwhile. Then all waiting closures are
  //   cancelled, the epoch has ended, and the coordinator can be used again.
  // - the exception of a learning rate's function, after all steps before it have been returned.
  // - out_of_range: the dataset is empty on every worker; or a sum of integers does not fit into
  //   int64.
  // - failed_precondition: a worker was lost, and its elements may come in a different order
  //   (deterministic = false); or the epoch has ended with an error.
  // - data_loss: a file, which the error names, has a different size or content than when the epoch
  //   first read it (other times do not matter), or the number of elements has changed. Start the
  //   epoch again. A change within a file above 8 MiB may stay unnoticed, so do not change files
  //   during an epoch (docs/decisions/0041-a-returning-worker-compares-its-files.md).
  // - invalid_argument: the structure of a result differs from that of the first step.
  // - cancelled: the coordinator ended.
  // - deadline_exceeded: no step ended for CoordinatorOptions::progress_timeout. The error names
  //   the workers whose steps are missing. You may call try_next() again.
  std::optional<EpochStep> try_next();
  // Returns the result of the steps that try_next() has returned so far.
  EpochResult result() const;

 private:
  class Metrics;
  std::shared_ptr<coordinator::Runtime> runtime_;
  std::shared_ptr<coordinator::EpochRun> run_;
  std::unique_ptr<Metrics> metrics_;
};

}  // namespace cohort
