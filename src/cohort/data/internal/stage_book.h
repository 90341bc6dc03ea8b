// SPDX-License-Identifier: Apache-2.0
// What the stages of one running pipeline took: times and numbers of elements, for
// Iterator::stats().
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
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

  // That of an op at a place; the stages of all epochs share it. Lives as long as the book.
  Entry& entry(const std::string& place, std::string_view op);
  // From the sink on.
  std::vector<StageStats> stats() const;

 private:
  mutable Mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Entry>> entries_
      COHORT_GUARDED_BY(mutex_);
};

// The same stage, with an account of it in the context's book.
std::unique_ptr<Stage> measured(std::unique_ptr<Stage> stage, const Node& node,
                                const StageContext& context);

// While it lives, its thread works for the stage of `node`, which is not in a call of that thread.
// Used from its thread alone.
class Working {
 public:
  // nullptr: nobody keeps account.
  explicit Working(StageBook::Entry* entry);
  ~Working();
  Working(const Working&) = delete;
  Working& operator=(const Working&) = delete;

 private:
  StageBook::Entry* entry_;
  std::chrono::steady_clock::time_point start_;
};

// For Working: the entry of the stage that `node` starts in `context`, where there is a book; it
// lives as long as that stage.
StageBook::Entry* entry_of(const Node& node, const StageContext& context);

// While it lives, its thread's time counts as waiting for another, not as work of the stage that
// waits. Used from its thread alone.
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
