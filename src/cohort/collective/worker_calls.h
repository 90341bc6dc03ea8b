// SPDX-License-Identifier: Apache-2.0
// The calls of a strategy in which the workers exchange values.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::collective {

// Refuses a second thread while such a call runs. Workers match these calls by their order, so two
// at once could be paired with one another, and their numbers would be mixed. Thread-safe.
class COHORT_API WorkerCalls {
 public:
  // How many elements of distributed datasets this worker has taken in its group. If workers have
  // taken different numbers, their steps compute with parts of different batches.
  std::uint64_t num_elements() const { return num_elements_.load(std::memory_order_relaxed); }
  void note_element() { num_elements_.fetch_add(1, std::memory_order_relaxed); }
  void begin_group() { num_elements_.store(0, std::memory_order_relaxed); }

  // A call runs while this exists. It may make further calls on the same thread.
  class COHORT_API Running {
   public:
    // Throws failed_precondition if another thread is in such a call. `call` is the name of the
    // method, for the message.
    Running(WorkerCalls& calls, std::string_view call);
    ~Running();
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;

   private:
    WorkerCalls& calls_;
  };

 private:
  std::atomic<std::uint64_t> num_elements_ = 0;
  Mutex mutex_;
  std::size_t depth_ COHORT_GUARDED_BY(mutex_) = 0;
  std::thread::id thread_ COHORT_GUARDED_BY(mutex_);
  std::string call_ COHORT_GUARDED_BY(mutex_);  // the outermost
};

}  // namespace cohort::collective
