// SPDX-License-Identifier: Apache-2.0
// The threads on which the replicas of one process run.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cohort/core/mutex.h"

namespace cohort::internal {

// Threads that live as long as this object and sleep between two runs. Thread-safe: runs at the
// same time, and a run inside another one, get threads of their own. So does a child process after
// fork(), which has none of the parent's threads.
class ReplicaThreads {
 public:
  // Starts no thread; the first run does.
  ReplicaThreads();
  // Logs an error if a run is going on, which uses this object.
  ~ReplicaThreads();

  // Calls body(i) for 0 <= i < count, all at the same time, and returns when all have returned.
  // body(0) runs on this thread. The others have LibTorch's thread-local state of this thread: the
  // grad mode, autocast, the dispatch keys. `body` must not throw. Throws resource_exhausted,
  // before it calls body, if a thread cannot be started.
  void run(int count, const std::function<void(int)>& body);

 private:
  class Thread;
  // The threads of one run. They belong to it until it ends.
  using Team = std::vector<std::unique_ptr<Thread>>;

  Team take();
  void give_back(Team team);
  void forget_those_of_the_parent() COHORT_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Team> idle_ COHORT_GUARDED_BY(mutex_);
  int running_ COHORT_GUARDED_BY(mutex_) = 0;
  int process_ COHORT_GUARDED_BY(mutex_) = 0;  // whose threads these are
};

}  // namespace cohort::internal
