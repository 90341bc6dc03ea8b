// SPDX-License-Identifier: Apache-2.0
// The tasks that a coordinator waits for when it starts.
#pragma once

#include <set>
#include <string>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::internal {

// Logs which tasks the start-up still waits for. Thread-safe.
class Awaited {
 public:
  explicit Awaited(std::set<std::string> names) : names_(std::move(names)) {}

  void has_come(const std::string& name);
  // Returns when no task is left.
  void wait();

 private:
  bool is_over(Duration pause) COHORT_REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::set<std::string> names_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
