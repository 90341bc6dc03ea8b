// SPDX-License-Identifier: Apache-2.0
// The newest error of a task, for its health.
#pragma once

#include <optional>

#include "cohort/cluster/task_health.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc {

// Keeps the newest error. Thread-safe.
class COHORT_API ErrorRecord {
 public:
  void note(const Error& error);
  std::optional<TaskError> get() const;

 private:
  mutable Mutex mutex_;
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  TimePoint noted_at_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::rpc
