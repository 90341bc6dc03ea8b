// SPDX-License-Identifier: Apache-2.0
// The checkpoints of one training (tf's CheckpointSaverHook).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/checkpoint/checkpoint.h"
#include "cohort/core/clock.h"
#include "cohort/estimator/model.h"
#include "cohort/estimator/training_hook.h"

namespace cohort::estimator {

// Where several workers train together, all make the same calls. Used only from the thread of
// train().
class CheckpointSaver {
 public:
  CheckpointSaver(Model& model, const RunConfig& config,
                  std::vector<std::shared_ptr<SavingListener>> listeners);

  // Restores the latest checkpoint and returns its step; 0: there is none, or the model has newer
  // values, which servers have kept.
  std::int64_t restore();
  // Before the first step: saves if nothing was restored. Returns, as save() and end() do, whether
  // a listener wants to stop.
  bool begin(std::int64_t step);
  // Whether a checkpoint is due because of the number of steps, which all workers know, or because
  // of the time, which only the one that saves decides.
  bool is_due_by_steps(std::int64_t step) const;
  bool is_due_by_time(std::int64_t step) const;
  // The next step that is due by number; nullopt: time counts, or there are no checkpoints.
  std::optional<std::int64_t> next_step() const;
  bool save(std::int64_t step);
  // The same, but a checkpoint is only late if the servers of independent workers were restored
  // since the step: then their values are of an earlier one.
  bool save_if_possible(std::int64_t step);
  // After the last step: saves unless that was done.
  bool end(std::int64_t step);
  // When others have made all steps: a chief that was lost may have been to save the last one.
  void save_what_nobody_has_saved(std::int64_t step);

 private:
  Model& model_;
  const RunConfig& config_;
  const std::vector<std::shared_ptr<SavingListener>> listeners_;
  CheckpointManager manager_;
  std::int64_t last_step_ = -1;  // of the last checkpoint; -1: none
  TimePoint last_time_;
};

}  // namespace cohort::estimator
