// SPDX-License-Identifier: Apache-2.0
// The answers to requests that were sent together.
#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/requester.h"

namespace cohort::rpc::internal {

// Thread-safe. Late answers keep it alive after wait().
class Answers {
 public:
  explicit Answers(std::size_t count) : answers_(count), missing_(count) {}

  void put(std::size_t index, Answer answer) {
    {
      const Lock lock(mutex_);
      if (index >= answers_.size()) return;  // wait() has returned already
      answers_[index] = std::move(answer);
      if (--missing_ > 0) return;
    }
    changed_.notify_one();
  }

  bool are_here(std::span<const std::size_t> indices) {
    const Lock lock(mutex_);
    return std::ranges::all_of(
        indices, [this](std::size_t i) COHORT_REQUIRES(mutex_) { return answers_[i].has_value(); });
  }

  std::vector<std::optional<Answer>> wait(Deadline deadline) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, deadline, [this]() COHORT_REQUIRES(mutex_) { return missing_ == 0; });
    return std::move(answers_);
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<std::optional<Answer>> answers_ COHORT_GUARDED_BY(mutex_);
  std::size_t missing_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::rpc::internal
