// SPDX-License-Identifier: Apache-2.0
// The mutex of a variable or a table, of which a long export takes pieces between requests.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>

#include "cohort/core/mutex.h"
#include "cohort/core/spin.h"

namespace cohort::parameter_server {

// An ordinary mutex goes to the thread that asks first after it is free: the exporter, which runs,
// and not the request, which must be woken and would wait for all pieces. Thread-safe.
class COHORT_CAPABILITY("mutex") ExportMutex {
 public:
  void lock() COHORT_ACQUIRE() {
    if (mutex_.try_lock()) return;
    ++waiting_;
    // A piece is copied in less time than a thread needs to wake up.
    if (!has_core_each(2) || !spin(kSpins, [this] { return mutex_.try_lock(); })) mutex_.lock();
    --waiting_;
  }
  void unlock() COHORT_RELEASE() { mutex_.unlock(); }
  // Between two pieces of a long work: those who wait get the mutex first. So that requests without
  // a gap do not hold the export up for ever, it waits only for a moment.
  void let_others_go_first() const COHORT_EXCLUDES(this) {
    if (waiting_ == 0) return;
    spin_for(kMomentMax, [this] { return waiting_ == 0; });
  }

 private:
  static constexpr int kSpins = 1000;  // some ten microseconds
  static constexpr std::chrono::milliseconds kMomentMax{1};
  std::mutex mutex_;
  std::atomic<int> waiting_ = 0;
};

// Holds it for a scope.
class COHORT_SCOPED_CAPABILITY ExportLock {
 public:
  explicit ExportLock(ExportMutex& mutex) COHORT_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ExportLock() COHORT_RELEASE() { mutex_.unlock(); }
  ExportLock(const ExportLock&) = delete;
  ExportLock& operator=(const ExportLock&) = delete;

 private:
  ExportMutex& mutex_;
};

}  // namespace cohort::parameter_server
