// SPDX-License-Identifier: Apache-2.0
// Classifies failed closures by a table over (code, origin, cause) of their errors. The text of an
// error is never read.
//
// Follows the failure handler of tf's Cluster class, which searches messages for phrases, with two
// differences: reports of transient failures are forgotten after a while, and an application's own
// error is never a lost task, whatever its code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_map>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"

namespace cohort::coordinator {

enum class FailureClass : std::uint8_t {
  transient_ps,       // a parameter server could not be reached for a moment: run the closure again
  transient_timeout,  // a deadline passed: run the closure again
  // It ended because others were cancelled: run it again, unless there is an error.
  cancelled_by_job,
  application,     // the closure's own error, for the callers
  worker_failure,  // the worker is lost: recover it, run the closure elsewhere
};

struct FailureOptions {
  // The report that reaches the count is fatal; <= 0: the first one.
  // TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES: of one parameter server.
  int ps_failures_max = 3;
  // TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS: of the whole cluster; -1: workers / 10.
  int timeouts_max = -1;
  // Reports older than this are forgotten.
  Duration window = std::chrono::minutes(10);
  // Reports of one parameter server less than this after a counted one are the same event: several
  // closures in flight fail together when a connection breaks. Zero: each report counts.
  Duration same_event = Duration::zero();
};

// The index of the parameter server that the error blames; -1 if the server has no known index;
// nullopt if no server failed.
COHORT_API std::optional<int> failed_ps(const Error& error);
// Whether the error says that its worker is lost.
COHORT_API bool is_worker_failure(const Error& error);
// Whether a call to a worker failed because the worker cannot be reached or was restarted. Its
// recovery will repeat the effect of the call.
COHORT_API bool is_worker_away(const Error& error);
// Whether the error says that a resource could not be made on a worker (tf's ClosureInputError).
COHORT_API bool is_broken_resource(const Error& error);
// The same error with the code unavailable, on which callers can rely for a lost parameter server,
// a remedy, and the worker that met it, which may belong to another cluster.
COHORT_API Error as_ps_unavailable(const Error& error, std::size_t worker);

// Counts transient failures. Used only under its owner's lock.
class COHORT_API FailurePolicy {
 public:
  FailurePolicy(FailureOptions options, std::size_t workers);

  // The first matching row decides. Each call counts as a report.
  FailureClass classify(const Error& error, bool is_cancelling, TimePoint now);

 private:
  using Reports = std::deque<TimePoint>;
  // Counts one more report, and returns whether it may still be ignored.
  bool is_ignored(Reports& reports, int reports_max, Duration same_event, TimePoint now) const;

  FailureOptions options_;
  std::unordered_map<int, Reports> ps_failures_;
  Reports timeouts_;
};

}  // namespace cohort::coordinator
