// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/task_progress.h"

#include <chrono>

namespace cohort {
namespace {

constexpr auto kMarkEvery = std::chrono::seconds(5);

}  // namespace

ProgressMeter& ProgressMeter::of_process() {
  static ProgressMeter meter;
  return meter;
}

void ProgressMeter::note_step() {
  const TimePoint now = clock_.now();
  const Lock lock(mutex_);
  if (counted_.steps == 0) older_ = newer_ = {now, 1};  // the first one has no known beginning
  ++counted_.steps;
  last_step_ = now;
  if (now - newer_.time < kMarkEvery) return;
  older_ = newer_;
  newer_ = {now, counted_.steps};
}

void ProgressMeter::note_program(std::int64_t step, std::int64_t steps,
                                 const std::map<std::string, double>& values) {
  const Lock lock(mutex_);
  counted_.program_step = step;
  counted_.program_steps = steps;
  counted_.values = values;
}

TaskProgress ProgressMeter::progress() const {
  const TimePoint now = clock_.now();
  const Lock lock(mutex_);
  TaskProgress progress = counted_;
  if (progress.steps == 0) return progress;
  progress.since_last_step = now - last_step_;
  // The rate of a task that has stopped falls to 0.
  const Mark& from = now - newer_.time < kMarkEvery ? older_ : newer_;
  const double seconds = std::chrono::duration<double>(now - from.time).count();
  if (seconds > 0)
    progress.steps_per_second = static_cast<double>(progress.steps - from.steps) / seconds;
  return progress;
}

}  // namespace cohort
