// SPDX-License-Identifier: Apache-2.0
// The learning rates of a TorchOptimizer by the number of its steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cohort/optimizer/learning_rate_schedule.h"

namespace cohort::internal {

// rate() and note_update() are called from the thread of the replica, in a run; the others while
// none is in progress.
class TorchSchedules {
 public:
  explicit TorchSchedules(std::size_t replicas) : counts_(replicas) {}

  // Throws invalid_argument for a group that is none of `groups`, and as rate() does.
  void set(const LearningRateSchedule& rate, std::optional<std::size_t> group, std::size_t groups);
  // The rate of the replica's next step. Throws invalid_argument for one that is negative or not
  // finite, and what the schedule throws.
  std::optional<double> rate(std::size_t replica, std::size_t group) const;
  void note_update(std::size_t replica) { ++counts_[replica].value; }
  std::int64_t iterations() const { return counts_.front().value; }
  void set_iterations(std::int64_t iterations) { counts_.assign(counts_.size(), {iterations}); }

 private:
  // On a cache line of its own, since replicas count at the same time.
  struct alignas(64) Count {
    std::int64_t value = 0;
  };
  std::vector<std::optional<LearningRateSchedule>> schedules_;  // by group; those after them: none
  std::vector<Count> counts_;                                   // of each replica
};

}  // namespace cohort::internal
