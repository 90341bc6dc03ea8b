// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/eager_runs.h"

#include <utility>

namespace cohort::coordinator {

// As on a worker, an error of the closure is the error of its result and of the next call.
void EagerRuns::run(const Function& fn, const std::vector<Nest>& arguments, RemoteState& result) {
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  ClosureId id = 0;
  {
    const RuntimeLock lock(context_);
    id = context_.numbers.next_closure++;
  }
  std::optional<Error> error;
  try {
    result.set(steps_.run(fn, arguments, id));
  } catch (const Error& thrown) {
    error = thrown;
    result.fail(thrown);
  }
  const VariableTraffic traffic = steps_.take_traffic();
  const RuntimeLock lock(context_);
  count_end(error, traffic);
  if (error && !error_) error_ = std::move(error);
}

// Counts like a worker's report; the step counts as one of worker 0.
void EagerRuns::count_end(const std::optional<Error>& error, const VariableTraffic& traffic) {
  context_.totals.pulled_bytes += traffic.pulled_bytes;
  context_.totals.pushed_bytes += traffic.pushed_bytes;
  context_.count_end(error, Clock::system().now());
  if (!error) pool_.count_closure(0);
}

void EagerRuns::raise_error() {
  std::optional<Error> error;
  {
    const RuntimeLock lock(context_);
    error = std::exchange(error_, std::nullopt);
  }
  if (error) throw *error;
}

void EagerRuns::raise_error_in(EpochRun& epoch) {
  std::optional<Error> error;
  {
    const RuntimeLock lock(context_);
    if (epoch.is_over) return;
    error = std::exchange(error_, std::nullopt);
    if (!error) return;
    epoch.is_over = true;
    epoch.error = error;
  }
  throw Error(*error);
}

std::optional<EpochStep> EagerRuns::next_step(EpochRun& epoch) {
  raise_error_in(epoch);
  const auto stand_ins = context_.home->lock_stand_ins();
  const Lock tracing(context_.tracing);
  ClosureId id = 0;
  while (epoch.eager_worker < context_.connection.num_workers()) {
    {
      const RuntimeLock lock(context_);
      if (epoch.is_over && epoch.error) throw epoch_is_over();
      id = context_.numbers.next_closure++;
    }
    const std::uint32_t worker = epoch.eager_worker;
    try {
      const std::optional<EagerSteps::Run> run =
          steps_.run_next(epoch.function, epoch.arguments, id, worker);
      const VariableTraffic traffic = steps_.take_traffic();
      const RuntimeLock lock(context_);
      if (!run) {
        epoch.progress.note_end(worker, epoch.progress.steps()[worker]);
        ++epoch.eager_worker;
        continue;
      }
      count_end(std::nullopt, traffic);
      const std::uint64_t step = epoch.progress.steps()[worker];
      epoch.progress.note_run(worker, step);
      return EpochStep{worker, step, run->rows, run->result};
    } catch (...) {
      const VariableTraffic traffic = steps_.take_traffic();
      const RuntimeLock lock(context_);
      epoch.is_over = true;
      epoch.error = current_error();
      count_end(epoch.error, traffic);
      throw;
    }
  }
  return std::nullopt;
}

void EagerRuns::release(const std::vector<std::uint64_t>& iterators) {
  if (!context_.options.run_eagerly) return;
  const Lock tracing(context_.tracing);
  steps_.release(iterators);
}

}  // namespace cohort::coordinator
