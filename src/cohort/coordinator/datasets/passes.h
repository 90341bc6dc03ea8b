// SPDX-License-Identifier: Apache-2.0
// The passes over one per-worker dataset, each of which an epoch makes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cohort/core/file_fingerprint.h"
#include "cohort/core/mutex.h"

namespace cohort::coordinator {

struct EpochRun;  // coordinator/epochs/epoch_run.h

// One pass, or the rest of one that another process has begun. A value type.
struct Pass {
  std::uint64_t number = 0;  // each pass shuffles in a different order
  // These three: of one that was begun. The seed of its shuffles, the steps that each worker has
  // made, and the files that each has read.
  std::uint64_t seed = 0;
  std::vector<std::uint64_t> steps = {};
  std::vector<std::vector<FileFingerprint>> files = {};
  bool was_begun() const { return !steps.empty(); }
};

// Shared by all objects for the same dataset. Thread-safe.
class Passes {
 public:
  // Starts a pass: the next one, or the rest of a restored one.
  Pass begin() {
    const Lock lock(mutex_);
    if (rest_) return *std::exchange(rest_, std::nullopt);
    return {.number = next_++};
  }
  // The epoch of a restored pass could not begin, so that the next one is to make it.
  void give_back(Pass pass) {
    if (pass.was_begun()) set_next(std::move(pass));
  }
  // Returns the pass that begin() would start.
  Pass next() const {
    const Lock lock(mutex_);
    return rest_ ? *rest_ : Pass{.number = next_};
  }
  void set_next(Pass pass) {
    const Lock lock(mutex_);
    next_ = pass.was_begun() ? pass.number + 1 : pass.number;
    rest_ = pass.was_begun() ? std::optional<Pass>(std::move(pass)) : std::nullopt;
  }
  void note_run(const std::shared_ptr<EpochRun>& run) {
    const Lock lock(mutex_);
    std::erase_if(runs_, [](const auto& one) { return one.expired(); });
    runs_.push_back(run);
  }
  // The epochs that somebody still has. Do not destroy the last copy of one under a lock.
  std::vector<std::shared_ptr<EpochRun>> runs() const {
    const Lock lock(mutex_);
    std::vector<std::shared_ptr<EpochRun>> all;
    for (const std::weak_ptr<EpochRun>& weak : runs_)
      if (auto run = weak.lock()) all.push_back(std::move(run));
    return all;
  }

 private:
  mutable Mutex mutex_;
  std::uint64_t next_ COHORT_GUARDED_BY(mutex_) = 0;
  std::optional<Pass> rest_ COHORT_GUARDED_BY(mutex_);  // of a restored pass
  std::vector<std::weak_ptr<EpochRun>> runs_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::coordinator
