// SPDX-License-Identifier: Apache-2.0
// The answers to requests that were sent together.
#pragma once

#include <cstddef>
#include <optional>
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

  // Whether all those have come for whose index this is true.
  template <class IsWanted>
  bool are_here(const IsWanted& is_wanted) {
    const Lock lock(mutex_);
    for (std::size_t i = 0; i < answers_.size(); ++i)
      if (!answers_[i] && is_wanted(i)) return false;
    return true;
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
