// SPDX-License-Identifier: Apache-2.0
// Profiles the stages of one running pipeline, for Iterator::stats(): times and element counts.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/data/graph/node.h"

namespace cohort::data {

// Written by the pipeline's threads, read by the user's. Thread-safe.
class StageProfiler {
 public:
  struct Entry {
    explicit Entry(const Clock& measuring) : clock(measuring) {}

    const Clock& clock;
    std::atomic<std::int64_t> elements = 0;
    std::atomic<std::int64_t> nanoseconds = 0;
    std::atomic<std::int64_t> own_nanoseconds = 0;
  };

  // The entry of an op at a place, which the stages of all epochs share. Lives as long as the
  // profiler.
  Entry& entry(const std::string& place, std::string_view op);
  // For entries that are made from here on. Tests have a clock of their own.
  void measure_with(const Clock& clock);
  // One per op, the sink first.
  std::vector<StageStats> stats() const;

 private:
  mutable Mutex mutex_;
  const Clock* clock_ COHORT_GUARDED_BY(mutex_) = &Clock::system();
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>> entries_
      COHORT_GUARDED_BY(mutex_);
};

// Wraps a stage so that its calls are recorded in the context's profiler.
std::unique_ptr<Stage> measured(std::unique_ptr<Stage> stage, const Node& node,
                                const StageContext& context);

// Counts its lifetime as the own time of a stage. For threads of a stage, outside the stage's
// calls. Used only from the thread that made it.
class ScopedWork {
 public:
  // nullptr: records nothing.
  explicit ScopedWork(StageProfiler::Entry* entry);
  ~ScopedWork();
  ScopedWork(const ScopedWork&) = delete;
  ScopedWork& operator=(const ScopedWork&) = delete;

 private:
  StageProfiler::Entry* entry_;
  TimePoint start_;
};

// For ScopedWork: the entry of the stage that `node` starts in `context`, which lives as long as
// that stage; nullptr if there is no profiler.
StageProfiler::Entry* entry_of(const Node& node, const StageContext& context);

// Counts its lifetime as waiting for another thread, not as own time of the current stage. Used
// only from the thread that made it.
class ScopedWait {
 public:
  ScopedWait();
  ~ScopedWait();
  ScopedWait(const ScopedWait&) = delete;
  ScopedWait& operator=(const ScopedWait&) = delete;

 private:
  const Clock* clock_;  // nullptr: no stage of this thread is profiled
  TimePoint start_;
};

}  // namespace cohort::data
