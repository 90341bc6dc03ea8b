// SPDX-License-Identifier: Apache-2.0
// A mutex that clang's thread-safety analysis understands (libstdc++'s own has no annotations).
//
//   cohort::Mutex mutex_;
//   int count_ COHORT_GUARDED_BY(mutex_);
#pragma once

#include <condition_variable>
#include <mutex>

#include "cohort/core/clock.h"

#if defined(__clang__)
#define COHORT_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define COHORT_THREAD_ATTRIBUTE(x)
#endif
#define COHORT_CAPABILITY(x) COHORT_THREAD_ATTRIBUTE(capability(x))
#define COHORT_SCOPED_CAPABILITY COHORT_THREAD_ATTRIBUTE(scoped_lockable)
#define COHORT_GUARDED_BY(x) COHORT_THREAD_ATTRIBUTE(guarded_by(x))
#define COHORT_REQUIRES(...) COHORT_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define COHORT_EXCLUDES(...) COHORT_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define COHORT_ACQUIRE(...) COHORT_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define COHORT_RELEASE(...) COHORT_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define COHORT_NO_THREAD_SAFETY_ANALYSIS COHORT_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace cohort {

class COHORT_CAPABILITY("mutex") Mutex {
 public:
  void lock() COHORT_ACQUIRE() { mutex_.lock(); }
  void unlock() COHORT_RELEASE() { mutex_.unlock(); }

 private:
  friend class Condition;
  std::mutex mutex_;
};

// Holds a mutex for a scope.
class COHORT_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Mutex& mutex) COHORT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~Lock() COHORT_RELEASE() { mutex_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable for Mutex. wait() takes a deadline and a predicate, and returns the
// predicate's value.
class Condition {
 public:
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

  template <class Predicate>
  bool wait(Mutex& mutex, Deadline deadline, Predicate ready, Clock& clock = Clock::system())
      COHORT_REQUIRES(mutex) COHORT_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool is_ready = clock.wait_until(lock, condition_, deadline.time(), ready);
    lock.release();
    return is_ready;
  }

 private:
  std::condition_variable condition_;
};

}  // namespace cohort
