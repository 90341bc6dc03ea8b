// SPDX-License-Identifier: Apache-2.0
// What a task counts, and answers to anybody who asks (GetHealth, `cohort status`).
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

// The newest error that a task has met. The text may hold what the user's program or data contain,
// so it goes only to a caller that names the job.
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
  std::uint64_t closures = 0;  // that it has run to a good end
  std::uint64_t losses = 0;    // how often it was lost
};

// The coordinator's own view. Closures count since the coordinator started.
struct CoordinatorHealth {
  std::uint64_t queued = 0;
  std::uint64_t in_flight = 0;
  std::uint64_t ended = 0;  // well
  std::uint64_t failed = 0;
  std::uint64_t cancelled = 0;
  std::uint64_t retries = 0;
  std::uint64_t traces = 0;
  std::vector<WorkerHealth> workers;  // by index
};

struct Health {
  std::uint64_t incarnation = 0;  // another number: the task was restarted
  // Of the current coordinator's job, as all up to pushed_bytes: a new coordinator starts at 0.
  std::uint64_t closures_run = 0;  // that ended well
  std::uint64_t pushes_applied = 0;
  std::uint64_t pushes_dropped = 0;  // came a second time, or after their closure was retired
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  // Both have closed the connections that they came over.
  std::uint64_t broken_frames = 0;
  std::uint64_t violations = 0;  // whole messages that no task sends which works right

  std::string task;  // "worker:1"; empty: the caller has not named the job
  Duration uptime = Duration::zero();
  // Of the current coordinator's job.
  std::uint64_t closures_failed = 0;
  std::uint64_t closures_queued = 0;   // came and have not started
  std::uint64_t closures_running = 0;  // started, and not reported yet
  // Of a worker: connections to parameter servers that broke. Of a coordinator: lost workers.
  std::uint64_t losses = 0;
  std::optional<Duration> since_last_end;  // of a closure; nothing: none has ended
  std::optional<LastError> last_error;
  std::optional<CoordinatorHealth> coordinator;  // of a task that coordinates
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
