// SPDX-License-Identifier: Apache-2.0
// The state shared by the threads that connect a coordinator to the tasks of its cluster, a thread
// each.
#pragma once

#include <atomic>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/mutex.h"

namespace cohort::internal {

// Joins its threads, even if the system cannot start another one. Used only from one thread.
class ConnectingThreads {
 public:
  explicit ConnectingThreads(std::atomic<bool>& should_stop) : should_stop_(should_stop) {}
  ~ConnectingThreads() { join(); }
  ConnectingThreads(const ConnectingThreads&) = delete;
  ConnectingThreads& operator=(const ConnectingThreads&) = delete;

  void start(std::function<void()> body);
  void join();

 private:
  std::atomic<bool>& should_stop_;
  std::vector<std::thread> threads_;
};

// Logs which tasks the start-up still waits for. Thread-safe.
class Awaited {
 public:
  explicit Awaited(std::set<std::string> names) : names_(std::move(names)) {}

  void has_come(const std::string& name);
  // Returns when no task is left.
  void wait();

 private:
  bool is_over(Duration pause) COHORT_REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::set<std::string> names_ COHORT_GUARDED_BY(mutex_);
};

// Whether the first task of the cluster has accepted the coordinator; until then its other tasks
// are not taken. Thread-safe.
class FirstTask {
 public:
  enum class State : std::uint8_t { awaited, taken, failed };
  explicit FirstTask(State state) : state_(state) {}

  void end(State state);
  // Returns when the state is another one than `awaited`, or at the deadline.
  State wait(Deadline deadline);

 private:
  Mutex mutex_;
  Condition changed_;
  State state_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
