// SPDX-License-Identifier: Apache-2.0
// The threads of a stage, which wait for room while its consumer waits for what they make.
#pragma once

#include <cstddef>
#include <functional>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"

namespace cohort::data {

// A base, whose derived class guards its state by `mutex_` and calls stop() first in its
// destructor. Its threads are used from one thread at a time.
class WorkThreads {
 protected:
  // `purpose` as in start_thread(). A cancellation wakes all waiting threads.
  WorkThreads(std::string_view purpose, std::stop_token cancelled)
      : purpose_(purpose), cancelled_(std::move(cancelled)), wake_(cancelled_, [this] {
          { const Lock lock(mutex_); }  // every thread that checked before the cancellation waits
          room_.notify_all();
          ready_to_take_.notify_all();
        }) {}
  ~WorkThreads() = default;

  // Starts threads until there are `count`.
  void start(std::size_t count, const std::function<void()>& work) COHORT_REQUIRES(mutex_) {
    must_stop_ = false;
    while (threads_.size() < count) threads_.push_back(start_thread(purpose_, work));
  }

  // Waits until the threads have ended what they do; start() starts them again.
  void stop() const {
    {
      const Lock lock(mutex_);
      must_stop_ = true;
    }
    room_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  bool has_threads() const { return !threads_.empty(); }
  bool is_cancelled() const { return cancelled_.stop_requested(); }

  // Waits, in a thread, until is_there() is true; false if the thread must end.
  template <class Predicate>
  bool wait_for_room(Predicate is_there) COHORT_REQUIRES(mutex_) {
    room_.wait(mutex_, Deadline(), [&]() COHORT_REQUIRES(mutex_) {
      return must_stop_ || is_cancelled() || is_there();
    });
    return !must_stop_ && !is_cancelled();
  }

  // Waits, in the consumer, until is_there() is true or the pipeline is cancelled.
  template <class Predicate>
  void wait_to_take(Predicate is_there) COHORT_REQUIRES(mutex_) {
    ready_to_take_.wait(mutex_, Deadline(),
                        [&]() COHORT_REQUIRES(mutex_) { return is_there() || is_cancelled(); });
  }

  mutable Mutex mutex_;
  mutable Condition room_;
  mutable Condition ready_to_take_;

 private:
  std::string_view purpose_;
  std::stop_token cancelled_;
  mutable bool must_stop_ COHORT_GUARDED_BY(mutex_) = false;
  mutable std::vector<std::thread> threads_;
  std::stop_callback<std::function<void()>> wake_;  // must be last: it uses the members above
};

}  // namespace cohort::data
