// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// The limits that keep a process from starting threads and processes, for the end of a message.
inline constexpr std::string_view kThreadLimitsRemedy =
    "raise this process's limits of threads and memory (ulimit -u, ulimit -v), or those of its "
    "container";

// Starts a thread. Throws resource_exhausted if the system cannot start one; `purpose` says in the
// message what the thread was for, "to prefetch elements". Thread-safe.
COHORT_API std::thread start_thread(std::string_view purpose, std::function<void()> body);
// The same, with all signals blocked in it, since signals are for the program's own threads.
COHORT_API std::thread start_thread_without_signals(std::string_view purpose,
                                                    std::function<void()> body);

// Joins its threads when it is destroyed. Used only from one thread.
class JoinedThreads {
 public:
  JoinedThreads() = default;
  ~JoinedThreads() { join(); }
  JoinedThreads(const JoinedThreads&) = delete;
  JoinedThreads& operator=(const JoinedThreads&) = delete;

  void add(std::thread thread) { threads_.push_back(std::move(thread)); }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace cohort
