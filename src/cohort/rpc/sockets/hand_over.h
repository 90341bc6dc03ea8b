// SPDX-License-Identifier: Apache-2.0
// Hands accepted connections on, on a few threads of its own, however many connections come.
#pragma once

#include <deque>
#include <functional>

#include "cohort/core/file_descriptor.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc::internal {

// Thread-safe. The threads end when no connection waits.
class HandOver {
 public:
  static constexpr int kThreadsMax = 4;

  // `take` may block; what it throws is logged.
  explicit HandOver(std::function<void(FileDescriptor)> take) : take_(std::move(take)) {}
  // Waits until no thread of it runs.
  ~HandOver();
  HandOver(const HandOver&) = delete;
  HandOver& operator=(const HandOver&) = delete;

  // Throws resource_exhausted if no thread runs and none can be started.
  void add(FileDescriptor socket);
  // Closes the connections that wait, and later ones.
  void close() noexcept;
  // Returns when no thread runs; for after close().
  void wait() noexcept;

 private:
  void run() noexcept;
  // Not open if there is none: then the calling thread is to end.
  FileDescriptor next();

  const std::function<void(FileDescriptor)> take_;
  Mutex mutex_;
  Condition changed_;
  bool is_closed_ COHORT_GUARDED_BY(mutex_) = false;
  std::deque<FileDescriptor> waiting_ COHORT_GUARDED_BY(mutex_);
  int threads_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::rpc::internal
