// SPDX-License-Identifier: Apache-2.0
// The thread that ends closures whose deadline has passed.
#pragma once

#include <thread>

#include "cohort/coordinator/queue/closure_scheduler.h"
#include "cohort/coordinator/runtime/runtime_context.h"

namespace cohort::coordinator {

// Thread-safe.
class DeadlineWatch {
 public:
  // Both must outlive it.
  DeadlineWatch(RuntimeContext& context, ClosureScheduler& scheduler)
      : context_(context), scheduler_(scheduler) {}
  // Starts the thread, which programs without deadlines need not have; the first call does it.
  // Throws resource_exhausted if the system has no more threads.
  void start();
  // After the context is over, and without the lock.
  void stop() noexcept;

 private:
  void watch();

  RuntimeContext& context_;
  ClosureScheduler& scheduler_;
  std::thread thread_ COHORT_GUARDED_BY(runtime_lock);
};

}  // namespace cohort::coordinator
