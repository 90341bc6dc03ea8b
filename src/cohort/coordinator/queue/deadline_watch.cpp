// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/deadline_watch.h"

#include <utility>

#include "cohort/core/start_thread.h"

namespace cohort::coordinator {

void DeadlineWatch::start() {
  const RuntimeLock lock(context_);
  if (!thread_.joinable() && !context_.is_over())
    thread_ = start_thread("to end closures at their deadlines", [this] { watch(); });
}

void DeadlineWatch::stop() noexcept {
  std::thread ended;
  {
    const RuntimeLock lock(context_);
    ended = std::move(thread_);
  }
  context_.deadlines_changed.notify_all();
  if (ended.joinable()) ended.join();
}

void DeadlineWatch::watch() {
  while (!context_.is_over()) {
    {
      const RuntimeLock lock(context_);
      const TimePoint first = scheduler_.deadlines().first();
      context_.wait(context_.deadlines_changed, Deadline(first),
                    [&]() COHORT_REQUIRES(runtime_lock) {
                      return context_.is_over() || scheduler_.deadlines().first() < first;
                    });
      if (!context_.is_over()) scheduler_.expire(Clock::system().now());
    }
    scheduler_.flush();
  }
}

}  // namespace cohort::coordinator
