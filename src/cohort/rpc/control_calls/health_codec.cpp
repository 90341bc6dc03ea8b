// SPDX-License-Identifier: Apache-2.0
// TaskHealth as a protobuf message and back.
#include <algorithm>

#include "cohort/rpc/control_calls/control_codec.h"

namespace cohort::rpc::internal {
namespace {

constexpr std::size_t kTextBytesMax = 4096;  // of an error

std::int64_t nanoseconds_of(Duration duration) {
  return std::chrono::nanoseconds(duration).count();
}
Duration duration_of(std::int64_t nanoseconds) { return std::chrono::nanoseconds(nanoseconds); }

// Codes of a later release become `unknown`.
TaskError decoded(const proto::LastError& message) {
  constexpr auto kCodeMax = static_cast<std::uint32_t>(ErrorCode::unauthenticated);
  constexpr auto kCauseMax = static_cast<std::uint32_t>(ErrorCause::must_restart);
  const bool is_known = message.code() >= 1 && message.code() <= kCodeMax;
  return {.code = is_known ? static_cast<ErrorCode>(message.code()) : ErrorCode::unknown,
          .cause = message.cause() <= kCauseMax ? static_cast<ErrorCause>(message.cause())
                                                : ErrorCause::none,
          .age = duration_of(message.age_nanoseconds()),
          .origin = message.origin(),
          .text = message.text()};
}

void encode_into(proto::LastError& message, const TaskError& error) {
  message.set_code(static_cast<std::uint32_t>(error.code));
  message.set_cause(static_cast<std::uint32_t>(error.cause));
  message.set_age_nanoseconds(nanoseconds_of(error.age));
  message.set_origin(error.origin);
  message.set_text(error.text.substr(0, std::min(error.text.size(), kTextBytesMax)));
}

void encode_into(proto::CoordinatorHealth& message, const CoordinatorHealth& coordinator) {
  message.set_queued(coordinator.queued);
  message.set_in_flight(coordinator.in_flight);
  message.set_completed(coordinator.completed);
  message.set_failed(coordinator.failed);
  message.set_cancelled(coordinator.cancelled);
  message.set_retries(coordinator.retries);
  message.set_traces(coordinator.traces);
  for (const WorkerHealth& worker : coordinator.workers) {
    proto::WorkerHealth& added = *message.add_workers();
    added.set_is_ready(worker.is_ready);
    added.set_closures(worker.closures);
    added.set_times_lost(worker.times_lost);
  }
}

CoordinatorHealth decoded(const proto::CoordinatorHealth& message) {
  CoordinatorHealth coordinator{.queued = message.queued(),
                                .in_flight = message.in_flight(),
                                .completed = message.completed(),
                                .failed = message.failed(),
                                .cancelled = message.cancelled(),
                                .retries = message.retries(),
                                .traces = message.traces(),
                                .workers = {}};
  for (const proto::WorkerHealth& worker : message.workers()) {
    coordinator.workers.push_back({.is_ready = worker.is_ready(),
                                   .closures = worker.closures(),
                                   .times_lost = worker.times_lost()});
  }
  return coordinator;
}

}  // namespace

proto::Health to_proto(const TaskHealth& health) {
  proto::Health message;
  message.set_incarnation(health.incarnation);
  message.set_closures_run(health.closures_run);
  message.set_pushes_applied(health.pushes_applied);
  message.set_pushes_dropped(health.pushes_dropped);
  message.set_pulled_bytes(health.pulled_bytes);
  message.set_pushed_bytes(health.pushed_bytes);
  message.set_broken_frames(health.broken_frames);
  message.set_protocol_errors(health.protocol_errors);
  message.set_task(health.task);
  message.set_uptime_nanoseconds(nanoseconds_of(health.uptime));
  message.set_closures_failed(health.closures_failed);
  message.set_closures_queued(health.closures_queued);
  message.set_closures_running(health.closures_running);
  message.set_connections_lost(health.connections_lost);
  if (health.since_last_end)
    message.set_since_last_end_nanoseconds(nanoseconds_of(*health.since_last_end));
  if (health.last_error) encode_into(*message.mutable_last_error(), *health.last_error);
  if (health.coordinator) encode_into(*message.mutable_coordinator(), *health.coordinator);
  return message;
}

TaskHealth from_proto(const proto::Health& message) {
  TaskHealth health{.incarnation = message.incarnation(),
                    .closures_run = message.closures_run(),
                    .pushes_applied = message.pushes_applied(),
                    .pushes_dropped = message.pushes_dropped(),
                    .pulled_bytes = message.pulled_bytes(),
                    .pushed_bytes = message.pushed_bytes(),
                    .broken_frames = message.broken_frames(),
                    .protocol_errors = message.protocol_errors(),
                    .task = message.task(),
                    .uptime = duration_of(message.uptime_nanoseconds()),
                    .closures_failed = message.closures_failed(),
                    .closures_queued = message.closures_queued(),
                    .closures_running = message.closures_running(),
                    .connections_lost = message.connections_lost(),
                    .since_last_end = std::nullopt,
                    .last_error = std::nullopt,
                    .coordinator = std::nullopt};
  if (message.has_since_last_end_nanoseconds())
    health.since_last_end = duration_of(message.since_last_end_nanoseconds());
  if (message.has_last_error()) health.last_error = decoded(message.last_error());
  if (message.has_coordinator()) health.coordinator = decoded(message.coordinator());
  return health;
}

}  // namespace cohort::rpc::internal
