// SPDX-License-Identifier: Apache-2.0
// The progress of this process, for those who ask from outside (`cohort status`).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort {

struct TaskProgress {
  std::uint64_t steps = 0;  // that have ended without an error
  double steps_per_second =
      0;  // in the last 5 to 10 s, or since the last step if that is longer ago
  std::optional<Duration> since_last_step = {};
  // The program has given these to its ProgressBar last; 0: nothing.
  std::int64_t program_step = 0;
  std::int64_t program_steps = 0;  // of the whole training
  std::map<std::string, double> values = {};
};

// Counts the steps of a process. Thread-safe.
class COHORT_API ProgressMeter {
 public:
  explicit ProgressMeter(Clock& clock = Clock::system()) : clock_(clock) {}
  // The meter of this process. Steps of all strategies count together, since one task is one
  // process.
  static ProgressMeter& of_process();

  void note_step();
  void note_program(std::int64_t step, std::int64_t steps,
                    const std::map<std::string, double>& values);
  TaskProgress progress() const;

 private:
  // How many steps there were at a time.
  struct Mark {
    TimePoint time{};
    std::uint64_t steps = 0;
  };

  Clock& clock_;
  mutable Mutex mutex_;
  TaskProgress counted_ COHORT_GUARDED_BY(mutex_);
  TimePoint last_step_ COHORT_GUARDED_BY(mutex_) = {};
  // The rate counts from the older one.
  Mark older_ COHORT_GUARDED_BY(mutex_);
  Mark newer_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
