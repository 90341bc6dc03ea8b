// SPDX-License-Identifier: Apache-2.0
// One run of a function on several replicas of this process, which meet in merge_call().
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cohort/core/detail/mutex.h"
#include "cohort/strategy/replica_call.h"

namespace cohort::internal {

// A meeting ends for all replicas in the same way: with the result of the merge, or with an error.
// Thread-safe; each replica is one thread.
class ReplicaRun {
 public:
  // The replicas are numbered from 0 here; `first` is the id of the first one, for messages.
  ReplicaRun(int count, int first);

  // Waits until all replicas have called meet(). Then the thread of replica 0 calls
  // merge(arguments of all). All replicas return the result, or throw the error of `merge`. Throws
  // failed_precondition if another replica has ended, invalid_argument if their offers have
  // different types, and cancelled if another replica has failed. There is no deadline, since the
  // other replicas run code of the user.
  std::shared_ptr<const void> meet(int replica, const MergeOffer& offer, const Merge& merge);
  // To be called when a replica's function has returned, or has thrown `error`.
  void end(int replica, std::exception_ptr error);
  // After all replicas have ended: throws the error that ended the run, if there is one. An error
  // that a replica threw because another had failed counts only if there is no other.
  void rethrow_error() const;

 private:
  // How a meeting has ended.
  struct Outcome {
    std::shared_ptr<const void> result;
    std::exception_ptr error;
  };
  bool is_complete() const COHORT_REQUIRES(mutex_) { return arrived_ == offers_.size(); }
  void throw_if_one_ended(int replica) COHORT_REQUIRES(mutex_);
  Outcome merged(const std::vector<const MergeOffer*>& offers, const Merge& merge) const;
  std::string name_of(std::size_t replica) const;

  const int first_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<const MergeOffer*> offers_ COHORT_GUARDED_BY(mutex_);  // of the current meeting
  std::size_t arrived_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t meetings_ COHORT_GUARDED_BY(mutex_) = 0;  // that have ended
  Outcome last_ COHORT_GUARDED_BY(mutex_);
  std::optional<std::size_t> first_ended_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::exception_ptr> errors_ COHORT_GUARDED_BY(mutex_);  // of the replicas
  std::vector<bool> was_released_ COHORT_GUARDED_BY(mutex_);  // its error follows from another's
};

}  // namespace cohort::internal
