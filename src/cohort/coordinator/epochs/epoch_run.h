// SPDX-License-Identifier: Apache-2.0
// The state of one epoch.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/coordinator/datasets/iterator_handle.h"
#include "cohort/coordinator/epoch.h"
#include "cohort/coordinator/epochs/epoch_progress.h"
#include "cohort/coordinator/server_snapshot.h"
#include "cohort/core/error.h"
#include "cohort/function/function.h"

namespace cohort::coordinator {

// The const fields never change. The others are used only under the runtime's lock.
struct EpochRun {
  // The first step in `finished`, if there is one.
  std::optional<EpochStep> take_finished();
  // Call it when the worker may draw its elements again from the beginning. If they may now come in
  // a different order, it sets the epoch's error and returns false.
  bool check_order(std::uint32_t worker);

  const Function function;
  const std::vector<Nest> arguments;  // the iterator is the first; nobody writes to the tensors
  const std::string changing_order;   // why elements may change their order; empty: they do not
  const std::shared_ptr<WorkerFiles> files;  // shared with the iterator
  const std::uint64_t pass = 0;              // its number
  const std::uint64_t seed = 0;              // of the dataset's random numbers
  // The values that steps read; nullptr: those of now.
  const std::shared_ptr<const ServerSnapshot> snapshot;
  internal::EpochProgress progress;
  std::deque<EpochStep> finished = {};  // steps that next() has not returned yet
  std::optional<Error> error = {};      // of the first step that failed
  bool is_over = false;                 // no more steps will end
  bool has_schedule = false;            // hyperparameters of the steps depend on their numbers
  // `error` is that of a learning rate: no step is sent any more, those that were sent run.
  bool has_no_rate = false;
  std::uint32_t eager_worker = 0;  // with run_eagerly: the worker whose elements are drawn now
};

// The epochs that are not given up. Used only under the coordinator's lock.
class OpenEpochs {
 public:
  void add(const std::shared_ptr<EpochRun>& epoch);
  // Checks the order of each epoch, since the worker was lost and may draw its elements again from
  // the beginning.
  void check_orders(std::uint32_t worker);
  // The epochs that have not ended. Do not destroy the last copy of one under the lock.
  std::vector<std::shared_ptr<EpochRun>> open() const;
  // Whether an epoch waits for the worker, because no other worker has its part of the data.
  bool wait_for(std::uint32_t worker) const;
  // Between these two calls no steps are scheduled.
  void hold() { ++holds_; }
  void release() { --holds_; }
  bool are_held() const { return holds_ > 0; }

 private:
  std::vector<std::weak_ptr<EpochRun>> epochs_;
  int holds_ = 0;
};

// The error of a call for an epoch that has ended with an error.
Error epoch_is_over();
// Throws invalid_argument for a step that does not draw from the epoch's iterator.
void check_draws(bool does_draw, const std::string& step);

// The step of an epoch that a closure runs. A value type.
struct EpochPlace {
  std::shared_ptr<EpochRun> run;  // null: the closure is no step of an epoch
  std::uint32_t worker = 0;
  std::uint64_t step = 0;
  bool is_counted = false;  // it was counted as a step with an element when it was sent
  std::uint64_t rows = 0;   // reported by its worker
  bool is_end = false;      // its worker found no element for it
};

}  // namespace cohort::coordinator
