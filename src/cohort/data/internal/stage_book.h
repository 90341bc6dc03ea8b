// SPDX-License-Identifier: Apache-2.0
// Profiles the stages of one running pipeline, for Iterator::stats(): times and element counts.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/data/internal/node.h"

namespace cohort::data {

// Written by the pipeline's threads, read by the user's. Thread-safe.
class StageBook {
 public:
  struct Entry {
    std::atomic<std::int64_t> elements = 0;
    std::atomic<std::int64_t> nanoseconds = 0;
    std::atomic<std::int64_t> own_nanoseconds = 0;
  };

  // The entry of an op at a place, which the stages of all epochs share. Lives as long as the book.
  Entry& entry(const std::string& place, std::string_view op);
  // One per op, the sink first.
  std::vector<StageStats> stats() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>> entries_
      COHORT_GUARDED_BY(mutex_);
};

// Wraps a stage so that its calls are recorded in the context's book.
std::unique_ptr<Stage> measured(std::unique_ptr<Stage> stage, const Node& node,
                                const StageContext& context);

// Counts its lifetime as the own time of a stage. For threads of a stage, outside the stage's
// calls. Used only from the thread that made it.
class Working {
 public:
  // nullptr: records nothing.
  explicit Working(StageBook::Entry* entry);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  StageBook::Entry* entry_;
  std::chrono::steady_clock::time_point start_;
};

// For Working: the entry of the stage that `node` starts in `context`, which lives as long as that
// stage; nullptr if there is no book.
StageBook::Entry* entry_of(const Node& node, const StageContext& context);

// Counts its lifetime as waiting for another thread, not as own time of the current stage. Used
// only from the thread that made it.
class Waiting {
 public:
  Waiting() : start_(std::chrono::steady_clock::now()) {}
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::chrono::steady_clock::time_point start_;
};

}  // namespace cohort::data
