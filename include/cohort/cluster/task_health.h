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

// A row of a variable, counted from the first one that this server has.
struct HotRow {
  std::int64_t row = 0;
  std::uint64_t times = 0;  // about how often it was read or updated
};

// The requests for one variable, or for one shard, on this server.
struct VariableHealth {
  std::string name;
  std::uint64_t pulls = 0;
  std::uint64_t pushes = 0;  // updates; a push may have several
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  // Counted are requests that name rows, as those of embeddings do.
  std::uint64_t pulled_rows = 0;
  std::uint64_t pushed_rows = 0;
  std::vector<HotRow> hot_rows = {};  // the hottest first; see ServerOptions::hot_rows
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
  // The bytes of the values, without the slots of optimizers. The values that snapshots of
  // evaluations keep count here and above, also while updates have not replaced them yet.
  std::uint64_t variable_bytes = 0;
  // Rows that requests have named, read or updated, in the last ten seconds.
  double rows_per_second = 0;
  // The variables with the most bytes in requests, at most 100; empty if the caller does not know
  // the job id.
  std::vector<VariableHealth> by_variable;
};

}  // namespace cohort
