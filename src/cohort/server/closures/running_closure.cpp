// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/closures/running_closure.h"

namespace cohort::server {

// This is called before the end is reported, so that the counts include every reported end.
void OpenClosures::note_end(const rpc::ClosureEnd& end, TimePoint now) {
  const bool is_failed = end.status == rpc::ClosureEnd::Status::failed;
  if (end.error && end.error->cause() == ErrorCause::cancelled_by_job) return;
  if (!is_failed && end.status != rpc::ClosureEnd::Status::ok) return;
  ++(is_failed ? failed : ended_well);
  last_end.store(now, std::memory_order_relaxed);
  if (end.error) errors->note(*end.error);
}

void RunningClosure::cancel() {
  {
    const Lock lock(mutex);
    is_cancelled = true;
  }
  changed.notify_all();
}

void RunningClosure::check_cancelled() const {
  if (!is_cancelled.load(std::memory_order_relaxed)) return;
  throw Error(ErrorCode::cancelled,
              "[server.run] the coordinator has cancelled this closure, since another one has "
              "failed or its epoch was given up; schedule it again",
              ErrorCause::cancelled_by_job);
}

void RunningClosure::wait(Duration pause) {
  const Lock lock(mutex);
  changed.wait(mutex, Deadline::after(pause), [this] { return is_cancelled.load(); });
}

void RunningClosure::fail(const Error& error) {
  const Lock lock(mutex);
  if (end.status == rpc::ClosureEnd::Status::failed) return;
  end.status = rpc::ClosureEnd::Status::failed;
  end.tensors.clear();
  end.error = error.origin().empty() ? Error(error).at(task) : error;
}

void RunningClosure::acknowledge(const std::optional<Error>& error, bool was_applied) {
  if (error) return fail(*error);
  if (was_applied) return;
  const Lock lock(mutex);
  ++traffic.pushes_dropped;
}

void RunningClosure::release() {
  if (--unacknowledged != 0) return;
  const TimePoint now = Clock::system().now();
  const bool is_short = now - started < kShortClosure;
  end.pulled_bytes = traffic.pulled_bytes;
  end.pushed_bytes = traffic.pushed_bytes;
  end.pushes_dropped = traffic.pushes_dropped;
  if (files) end.files = files->take_new();
  open->note_end(end, now);
  sender->end(std::move(end), more_follow && is_short);
  open->count.add(-1);
}

}  // namespace cohort::server
