// SPDX-License-Identifier: Apache-2.0
// Counters of a task, which it reports to any client (GetHealth, `cohort status`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc {

// The newest error of a task. Its text may contain parts of the user's program or data, so only a
// caller that names the job gets it.
struct LastError {
  ErrorCode code = ErrorCode::unknown;
  ErrorCause cause = ErrorCause::none;
  Duration age = Duration::zero();
  std::string origin;  // "ps:0"; empty: the task itself, or the caller has not named the job
  std::string text;    // empty: the caller has not named the job
};

// A worker as its coordinator sees it.
struct WorkerHealth {
  bool is_ready = false;
  std::uint64_t closures = 0;    // completed without an error
  std::uint64_t times_lost = 0;  // how often it was lost
};

// The coordinator's own view. Closures count since the coordinator started.
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

struct Health {
  std::uint64_t incarnation = 0;  // another number: the task was restarted
  // Up to pushed_bytes: counted for the current coordinator; a new one starts at 0.
  std::uint64_t closures_run = 0;  // without an error
  std::uint64_t pushes_applied = 0;
  std::uint64_t pushes_dropped = 0;  // arrived again, or after their closure was retired
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  // Each of these closed the connection on which it arrived.
  std::uint64_t broken_frames = 0;
  std::uint64_t protocol_errors = 0;  // intact messages that a correct task never sends

  std::string task;  // "worker:1"; empty: the caller has not named the job
  Duration uptime = Duration::zero();
  // Counted for the current coordinator.
  std::uint64_t closures_failed = 0;
  std::uint64_t closures_queued = 0;   // received and not started
  std::uint64_t closures_running = 0;  // started and not reported yet
  // On a worker: connections to parameter servers that broke. On a coordinator: lost workers.
  std::uint64_t connections_lost = 0;
  std::optional<Duration> since_last_end;  // of a closure; unset: none has ended
  std::optional<LastError> last_error;
  std::optional<CoordinatorHealth> coordinator;  // set on a coordinator
};

// Keeps the newest error. Thread-safe.
class COHORT_API ErrorRecord {
 public:
  void note(const Error& error);
  std::optional<LastError> get() const;

 private:
  mutable Mutex mutex_;
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
  TimePoint noted_at_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::rpc
