// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/epochs/epoch_progress.h"

#include <string>

namespace cohort::coordinator::internal {

void EpochProgress::note_run(std::size_t worker, std::uint64_t step) {
  Worker& one = workers_[worker];
  ++one.run;
  one.run_bound = std::max(one.run_bound, step + 1);
}

void EpochProgress::note_end(std::size_t worker, std::uint64_t step) {
  std::optional<std::uint64_t>& end = workers_[worker].end;
  end = std::min(end.value_or(step), step);
}

bool EpochProgress::is_over() const {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (waits_for(i)) return false;
  }
  return true;
}

bool EpochProgress::has_open() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const Worker& worker) { return worker.open > 0; });
}

std::vector<std::uint64_t> EpochProgress::steps() const {
  std::vector<std::uint64_t> steps;
  for (const Worker& worker : workers_) steps.push_back(worker.run);
  return steps;
}

std::optional<Error> EpochProgress::contradiction() const {
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    const Worker& worker = workers_[i];
    const std::uint64_t end = worker.end.value_or(worker.run);
    if (worker.run == end && worker.run_bound == end) continue;
    const std::string name = "worker:" + std::to_string(i);
    return Error(ErrorCode::data_loss,
                 "[coordinator.run_epoch] expected the data of " + name +
                     " to be the same when it was read again, got its end after " +
                     std::to_string(end) + " steps, and an element for step " +
                     std::to_string(worker.run_bound) +
                     " before: some elements were used twice or never; see whether its files "
                     "changed, "
                     "and start the epoch again from saved values",
                 ErrorCause::application)
        .at(name);
  }
  return std::nullopt;
}

}  // namespace cohort::coordinator::internal
