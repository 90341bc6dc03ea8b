// SPDX-License-Identifier: Apache-2.0
// The thread that writes a checkpoint while the training goes on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <thread>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"

namespace cohort::checkpoint {

// Runs tasks one after the other. After the first that throws, the others are dropped. Its methods
// are thread-safe.
class BackgroundWrite {
 public:
  // `bytes_max`: how much memory the tasks that wait or run may hold together. Throws
  // resource_exhausted if there can be no thread.
  explicit BackgroundWrite(std::uint64_t bytes_max);
  // Waits for all tasks, as closing a file waits for the disk. In a process that was forked off,
  // which does not have the thread, leaves everything to the parent.
  ~BackgroundWrite();
  BackgroundWrite(const BackgroundWrite&) = delete;
  BackgroundWrite& operator=(const BackgroundWrite&) = delete;

  // Before memory for a task is allocated: waits until there may be so much more. A task that needs
  // more than there is waits until no other one is left. Throws what an earlier task has thrown.
  void reserve(std::uint64_t bytes);
  // A task that holds so many bytes, which were reserved. After an error it is dropped.
  void add(std::uint64_t bytes, std::function<void()> task);
  // No task follows.
  void close();
  // Drops the tasks that have not begun.
  void cancel();
  // Whether all tasks have ended after close(), or one has thrown.
  bool is_done() const;
  // Waits for that; returns is_done().
  bool wait(Deadline deadline) const;
  // The error that a task has thrown.
  std::optional<Error> error() const;

 private:
  struct Task {
    std::uint64_t bytes = 0;
    std::function<void()> run;
  };
  void run();
  bool is_done_now() const COHORT_REQUIRES(mutex_);
  void drop_tasks() COHORT_REQUIRES(mutex_);

  const std::uint64_t bytes_max_;
  const int process_;
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::deque<Task> tasks_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t bytes_ COHORT_GUARDED_BY(mutex_) = 0;  // that are reserved
  bool is_running_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace cohort::checkpoint
