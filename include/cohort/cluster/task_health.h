// SPDX-License-Identifier: Apache-2.0
// Counters of a task, which it reports to every client that asks (`cohort status`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort {

// The newest error of a task. Its text may contain parts of the user's program or data, so only a
// caller that knows the job id gets it.
struct TaskError {
  ErrorCode code = ErrorCode::unknown;
  ErrorCause cause = ErrorCause::none;
  Duration age = Duration::zero();
  std::string origin;  // "ps:0"; empty: the task itself, or the caller does not know the job id
  std::string text;    // empty: the caller does not know the job id
};

// A worker, as its coordinator sees it.
struct WorkerHealth {
  bool is_ready = false;
  std::uint64_t closures = 0;    // that succeeded
  std::uint64_t times_lost = 0;  // how often the worker was lost
};

// The coordinator's own view. Counts closures since the coordinator started.
struct CoordinatorHealth {
  std::uint64_t queued = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t completed = 0;  // without an error
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t retries = 0;
  std::uint64_t traces = 0;
  std::vector<WorkerHealth> workers;  // by index
};

struct TaskHealth {
  std::uint64_t incarnation = 0;  // changes when the task restarts
  // These counters, up to pushed_bytes, start at 0 for each coordinator. A push is a message with
  // updates of variables, a pull is one with their values.
  std::uint64_t closures_run = 0;  // without an error
  std::uint64_t pushes_applied = 0;
  std::uint64_t pushes_dropped = 0;  // they arrived twice, or too late to be needed
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  // Damaged frames, and intact messages that a correct task never sends. Each closed its
  // connection.
  std::uint64_t broken_frames = 0;
  std::uint64_t protocol_errors = 0;

  std::string task;  // "worker:1"; empty: the caller does not know the job id
  Duration uptime = Duration::zero();
  // These also start at 0 for each coordinator.
  std::uint64_t closures_failed = 0;
  std::uint64_t closures_queued = 0;   // received, but not started
  std::uint64_t closures_running = 0;  // started, but not reported yet
  // Connections to other tasks of the job that broke. On a coordinator: how often it lost a worker.
  std::uint64_t connections_lost = 0;
  std::optional<Duration> since_last_end;  // the time since a closure ended; unset: none has
  std::optional<TaskError> last_error;
  std::optional<CoordinatorHealth> coordinator;  // set on a coordinator
  // A parameter server stores these now; a sharded variable counts once for each shard.
  std::uint64_t variables = 0;
  std::uint64_t variable_bytes = 0;  // of the values, without the slots of optimizers
};

}  // namespace cohort
