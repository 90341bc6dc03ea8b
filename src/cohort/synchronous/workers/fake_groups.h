// SPDX-License-Identifier: Apache-2.0
// For tests only: groups of workers that are threads of one process, of which some leave and others
// come.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/collective/process_groups.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort::internal {

// Strategies of other groups.
class WorkerGroupsAccess {
 public:
  // Forms the first group.
  static std::unique_ptr<MultiWorkerMirroredStrategy> strategy_of(
      std::shared_ptr<WorkerGroups> groups, const MultiWorkerMirroredOptions& options) {
    return std::unique_ptr<MultiWorkerMirroredStrategy>(
        new MultiWorkerMirroredStrategy(std::move(groups), nullptr, options));
  }
};

}  // namespace cohort::internal

namespace cohort::testing {

// Forms the groups that a test wants. Thread-safe.
class FakeFormations {
 public:
  // The next group has these tasks; those of the last group that are among `restarted` are new.
  void expect(std::set<int> tasks, std::set<int> restarted = {}) {
    const Lock lock(mutex_);
    tasks_ = std::move(tasks);
    restarted_ = std::move(restarted);
  }

  collective::Membership form(int task, Deadline deadline) {
    const Lock lock(mutex_);
    const std::uint64_t number = formed_ + 1;
    arrived_.insert(task);
    if (arrived_ == tasks_) begin(number);
    changed_.notify_all();
    if (!changed_.wait(mutex_, deadline,
                       [&]() COHORT_REQUIRES(mutex_) { return formed_ >= number; })) {
      arrived_.erase(task);
      internal::throw_error(ErrorCode::deadline_exceeded, "[testing.form] waited for other tasks");
    }
    collective::Membership membership = next_;
    const auto position = std::distance(tasks_.begin(), tasks_.find(task));
    membership.group = workers_->group(static_cast<int>(position));
    return membership;
  }

 private:
  void begin(std::uint64_t number) COHORT_REQUIRES(mutex_) {
    workers_ = std::make_unique<InProcessWorkers>(static_cast<int>(tasks_.size()));
    next_ = {.group = nullptr, .number = number, .tasks = {}, .survivor = {}, .is_new = {}};
    for (const int task : tasks_) {
      const bool is_new = !last_.contains(task) || restarted_.contains(task);
      if (!is_new && !next_.survivor) next_.survivor = static_cast<int>(next_.tasks.size());
      next_.tasks.push_back(task);
      next_.is_new.push_back(is_new);
    }
    last_ = tasks_;
    arrived_.clear();
    formed_ = number;
  }

  Mutex mutex_;
  Condition changed_;
  std::set<int> tasks_ COHORT_GUARDED_BY(mutex_);
  std::set<int> restarted_ COHORT_GUARDED_BY(mutex_);
  std::set<int> arrived_ COHORT_GUARDED_BY(mutex_);
  std::set<int> last_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t formed_ COHORT_GUARDED_BY(mutex_) = 0;
  std::unique_ptr<InProcessWorkers> workers_ COHORT_GUARDED_BY(mutex_);
  collective::Membership next_ COHORT_GUARDED_BY(mutex_);
};

// The groups of one task.
class FakeGroups final : public internal::WorkerGroups {
 public:
  FakeGroups(std::shared_ptr<FakeFormations> formations, int task)
      : formations_(std::move(formations)), task_(task) {}
  collective::Membership form(Deadline deadline, Duration /*return_wait*/) override {
    return formations_->form(task_, deadline);
  }

 private:
  const std::shared_ptr<FakeFormations> formations_;
  const int task_;
};

inline std::unique_ptr<MultiWorkerMirroredStrategy> strategy_of_task(
    const std::shared_ptr<FakeFormations>& formations, int task,
    const MultiWorkerMirroredOptions& options) {
  return internal::WorkerGroupsAccess::strategy_of(std::make_shared<FakeGroups>(formations, task),
                                                   options);
}

}  // namespace cohort::testing
