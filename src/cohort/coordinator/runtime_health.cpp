// SPDX-License-Identifier: Apache-2.0
// What the coordinator answers when somebody asks for its health.
#include "cohort/coordinator/internal/runtime.h"

namespace cohort::coordinator {

void Runtime::count_end(const std::optional<Error>& error, TimePoint now) {
  ends_.last = now;
  if (!error) return;
  if (error->code() == ErrorCode::cancelled) {
    ++ends_.cancelled;
    return;
  }
  ++ends_.failed;
  errors_.note(*error);
}

TaskHealth Runtime::health() const {
  const TimePoint now = Clock::system().now();
  TaskHealth health;
  health.incarnation = public_incarnation_;
  health.task = connection_.self().task;
  health.uptime = now - started_;
  health.last_error = errors_.get();
  CoordinatorHealth own;
  const Lock lock(mutex_);
  health.pushes_dropped = totals_.pushes_dropped;
  health.pulled_bytes = totals_.pulled_bytes;
  health.pushed_bytes = totals_.pushed_bytes;
  health.broken_frames = totals_.broken_frames;
  health.protocol_errors = totals_.protocol_errors;
  if (ends_.last) health.since_last_end = now - *ends_.last;
  own.queued = queue_.queued();
  own.in_flight = queue_.in_flight();
  own.failed = ends_.failed;
  own.cancelled = ends_.cancelled;
  own.retries = totals_.retries;
  own.traces = totals_.traces;
  for (const Worker& worker : workers_) {
    own.completed += worker.closures;
    health.connections_lost += worker.times_lost;
    own.workers.push_back({.is_ready = worker.is_ready,
                           .closures = worker.closures,
                           .times_lost = worker.times_lost});
  }
  health.coordinator = std::move(own);
  return health;
}

}  // namespace cohort::coordinator
