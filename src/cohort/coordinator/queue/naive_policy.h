// SPDX-License-Identifier: Apache-2.0
// The failure policy of the naive queue: the classes of failure for the errors of the fuzzer, in
// the order of the policy's rows.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cohort/coordinator/failure_policy.h"

namespace cohort::coordinator::internal {

// Used only from one test.
class NaivePolicy {
 public:
  enum class Then { again, lose_worker, fail_of_ps, fail };

  NaivePolicy(const FailureOptions& options, std::size_t workers)
      : options_(options), workers_(workers) {}

  Then decide(const Error& error, TimePoint now) {
    const ErrorCode code = error.code();
    const bool is_users = error.cause() == ErrorCause::application;
    const bool is_lost = code == ErrorCode::unavailable || code == ErrorCode::aborted;
    const bool is_ps = !is_users && is_lost && error.origin().rfind("ps", 0) == 0;
    const bool is_worker = !is_users && (is_lost || code == ErrorCode::cancelled) &&
                           error.origin().rfind("worker", 0) == 0;
    const bool is_timeout = !is_users && code == ErrorCode::deadline_exceeded;
    if (is_ps && is_ignored(ps_reports_[error.origin()], options_.ps_failures_max,
                            options_.same_event, now)) {
      return Then::again;
    }
    if (is_timeout && is_ignored(timeouts_, timeouts_max(), Duration::zero(), now))
      return Then::again;
    if (code == ErrorCode::cancelled && error.cause() == ErrorCause::cancelled_by_job)
      return Then::again;
    if (is_worker) return Then::lose_worker;
    return is_ps ? Then::fail_of_ps : Then::fail;
  }

 private:
  int timeouts_max() const {
    const int max = options_.timeouts_max;
    return max == -1 ? static_cast<int>(workers_ / 10) : max;
  }

  // `counted`: every report that was counted, however old.
  bool is_ignored(std::vector<TimePoint>& counted, int max, Duration same_event,
                  TimePoint now) const {
    if (counted.empty() || now - counted.back() >= same_event) counted.push_back(now);
    const auto recent = std::count_if(counted.begin(), counted.end(),
                                      [&](TimePoint t) { return now - t <= options_.window; });
    return recent < max;
  }

  FailureOptions options_;
  std::size_t workers_;
  std::map<std::string, std::vector<TimePoint>> ps_reports_;
  std::vector<TimePoint> timeouts_;
};

}  // namespace cohort::coordinator::internal
