// SPDX-License-Identifier: Apache-2.0
// One run of a function on several replicas of this process, which meet in merge_call().
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"
#include "cohort/strategy/replica_call.h"

namespace cohort::internal {

// Throws the error that ended a run, if there is one: that of the first replica that failed, named
// if it is an Error that the others did not throw too. An error that a replica threw because
// another had failed counts only if there is no other. `first`: the id of the first replica.
void rethrow_first(const std::vector<std::exception_ptr>& errors,
                   const std::vector<bool>& was_released, int first);

// A meeting ends for all replicas in the same way: with the result of the merge, or with an error.
// Thread-safe; each replica is one thread.
class ReplicaRun {
 public:
  // The replicas are numbered from 0 here; `first` is the id of the first one, for messages. A
  // meeting that lasts longer than `patience` is logged.
  ReplicaRun(int count, int first, Duration patience = std::chrono::seconds(30));
  // The number of OpenMP threads with which operators computed where the run began. A merge has
  // them all, since the replicas wait for it; but products of matrices (OpenBLAS) keep the share.
  int threads() const { return threads_; }

  // Waits until all replicas have called meet(). Then the thread of replica 0 calls
  // merge(arguments of all). All replicas return the result, or throw the error of `merge`. Throws
  // failed_precondition if another replica has ended, invalid_argument if their offers have
  // different types, and cancelled if another replica has failed. There is no deadline, since the
  // other replicas run code of the user.
  std::shared_ptr<const void> meet(int replica, const MergeOffer& offer, const Merge& merge);
  // To be called when a replica's function has returned, or has thrown `error`.
  void end(int replica, std::exception_ptr error);
  // After all replicas have ended: throws the error that ended the run, if there is one.
  void rethrow_error() const;

 private:
  // How a meeting has ended.
  struct Outcome {
    std::shared_ptr<const void> result;
    std::exception_ptr error;
  };
  bool is_complete() const { return arrived_ == count_; }
  void throw_if_one_ended(int replica) COHORT_REQUIRES(mutex_);
  Outcome merged(const std::vector<const MergeOffer*>& offers, const Merge& merge) const;
  std::string name_of(std::size_t replica) const;
  // Logs whom the replica waits for, if none before it does so.
  void log_waiting(std::size_t replica) const COHORT_REQUIRES(mutex_);

  const std::size_t count_;
  const int first_;
  const int threads_;
  const Duration patience_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<const MergeOffer*> offers_ COHORT_GUARDED_BY(mutex_);  // of the current meeting
  // Written with the mutex; read without it by a replica that waits for a short time.
  std::atomic<std::size_t> arrived_ = 0;
  std::atomic<std::uint64_t> meetings_ = 0;  // that have ended
  std::atomic<bool> has_one_ended_ = false;
  Outcome last_ COHORT_GUARDED_BY(mutex_);
  std::optional<std::size_t> first_ended_ COHORT_GUARDED_BY(mutex_);
  std::vector<std::exception_ptr> errors_ COHORT_GUARDED_BY(mutex_);  // of the replicas
  std::vector<bool> was_released_ COHORT_GUARDED_BY(mutex_);  // its error follows from another's
};

}  // namespace cohort::internal
