// SPDX-License-Identifier: Apache-2.0
// State that the parts of a coordinator share: options, connections, one lock, and whether it has
// ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server_strategy/cluster_connection.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/error_record.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

// The lock of a coordinator as a global name for clang's thread-safety analysis, which would take
// one mutex, reached through two parts, for two. No thread holds the locks of two coordinators.
class COHORT_CAPABILITY("mutex") RuntimeLockRole {};
inline RuntimeLockRole runtime_lock;

// Decisions that concern several parts (closures, workers, functions, iterators, epochs) are made
// under one lock. User code and calls to other tasks run without it. Thread-safe.
struct RuntimeContext : public std::enable_shared_from_this<RuntimeContext> {
  RuntimeContext(ParameterServerStrategy& its_strategy, const CoordinatorOptions& its_options,
                 CoordinatorNumbers its_numbers);

  // Throws, naming the call: the error of replacement, or cancelled after stop().
  void check_running(std::string_view call) const;
  // Stopped or replaced: nothing new may start.
  bool is_over() const { return is_stopping || is_replaced; }
  // If the error says that another coordinator has replaced this one, ends this one for good and
  // returns true. Call it without the lock.
  bool end_if_replaced(const Error& error);
  // Waits without the lock; returns the predicate's value.
  template <class Predicate>
  bool wait(Condition& condition, Deadline deadline, Predicate ready)
      COHORT_REQUIRES(runtime_lock) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    return condition.wait(mutex, deadline, ready);
  }
  // Counts a closure that has ended.
  void count_end(const std::optional<Error>& error, TimePoint now) COHORT_REQUIRES(runtime_lock);

  ParameterServerStrategy& strategy;
  // Keeps it alive, since a channel's thread may hold the last reference to the coordinator after
  // the strategy was destroyed.
  const std::shared_ptr<detail::ParameterServerHome> home;
  ClusterConnection& connection;
  const CoordinatorOptions options;
  const Duration data_timeout;

  Mutex mutex;  // locked by RuntimeLock
  Condition changed;
  Condition stopped;            // for threads that must not wake at every end of a closure
  Condition deadlines_changed;  // a closure has an earlier deadline than all others
  Mutex tracing;  // held while the user's function runs; never locked by workers' threads

  std::atomic<bool> is_stopping{false};
  std::optional<Error> replaced;  // written once, before is_replaced
  std::atomic<bool> is_replaced{false};
  // Called by end_if_replaced(). Set before the other threads start.
  std::function<void(const Error& error)> on_replaced;

  CoordinatorNumbers numbers COHORT_GUARDED_BY(runtime_lock);
  CoordinatorStatistics totals COHORT_GUARDED_BY(runtime_lock);
  // Counts announced functions and created iterators, so that a worker that returns misses none.
  std::uint64_t version COHORT_GUARDED_BY(runtime_lock) = 0;
  // When a closure last ended, or when the wait for one began. If nothing has ended for
  // data_timeout since then, callers throw.
  TimePoint last_progress COHORT_GUARDED_BY(runtime_lock) = Clock::system().now();
  // Counts of closures that did not succeed; WorkerPool counts those that did.
  struct Ends {
    std::uint64_t failed = 0;
    std::uint64_t cancelled = 0;
    std::optional<TimePoint> last;  // of any closure
  };
  Ends ends COHORT_GUARDED_BY(runtime_lock);
  rpc::ErrorRecord errors;
};

// Holds the context's lock for a scope.
class COHORT_SCOPED_CAPABILITY RuntimeLock {
 public:
  explicit RuntimeLock(RuntimeContext& context)
      COHORT_ACQUIRE(runtime_lock) COHORT_NO_THREAD_SAFETY_ANALYSIS : mutex_(context.mutex) {
    mutex_.lock();
  }
  ~RuntimeLock() COHORT_RELEASE() COHORT_NO_THREAD_SAFETY_ANALYSIS { mutex_.unlock(); }
  RuntimeLock(const RuntimeLock&) = delete;
  RuntimeLock& operator=(const RuntimeLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace cohort::coordinator
