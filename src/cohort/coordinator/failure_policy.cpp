// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/failure_policy.h"

#include <array>
#include <charconv>
#include <string>

#include "cohort/rpc/task_errors.h"

namespace cohort::coordinator {
namespace {

enum class Job : std::uint8_t { ps, worker };

// A row applies to errors with this code that come from `job`; if it has a cause, only to those
// with that cause.
struct LostTaskRow {
  Job job;
  ErrorCode code;
  std::optional<ErrorCause> cause;
};

// tf's "unknown device", "lost remote handle" and "primary device is not remote" correspond to
// handle_lost, its "not the name of a function registered" to function_missing. data_loss with
// peer_lost is a damaged frame, which has ended the connection. A restarted task reports not_found
// with handle_lost for a variable or an iterator, and failed_precondition before it has met the
// coordinator again.
constexpr std::array<LostTaskRow, 16> kLostTaskRows = {{
    {Job::ps, ErrorCode::unavailable, {}},
    {Job::ps, ErrorCode::aborted, {}},
    {Job::ps, ErrorCode::data_loss, ErrorCause::peer_lost},
    {Job::ps, ErrorCode::invalid_argument, ErrorCause::peer_lost},
    {Job::ps, ErrorCode::invalid_argument, ErrorCause::handle_lost},
    {Job::ps, ErrorCode::not_found, ErrorCause::handle_lost},
    {Job::ps, ErrorCode::failed_precondition, ErrorCause::handle_lost},
    {Job::worker, ErrorCode::unavailable, {}},
    {Job::worker, ErrorCode::aborted, {}},
    {Job::worker, ErrorCode::data_loss, ErrorCause::peer_lost},
    {Job::worker, ErrorCode::cancelled, {}},
    {Job::worker, ErrorCode::invalid_argument, ErrorCause::peer_lost},
    {Job::worker, ErrorCode::invalid_argument, ErrorCause::handle_lost},
    {Job::worker, ErrorCode::invalid_argument, ErrorCause::input_binding},
    {Job::worker, ErrorCode::not_found, ErrorCause::function_missing},
    {Job::worker, ErrorCode::not_found, ErrorCause::handle_lost},
}};

struct Task {
  Job job;
  int index = -1;
};

// "worker:1"; nullopt for other jobs and for this process.
std::optional<Task> task_of(std::string_view origin) {
  const std::size_t colon = origin.find(':');
  const std::string_view job = origin.substr(0, colon);
  if (job != "ps" && job != "worker") return std::nullopt;
  Task task{job == "ps" ? Job::ps : Job::worker};
  if (colon == std::string_view::npos) return task;
  const std::string_view digits = origin.substr(colon + 1);
  int index = -1;
  const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), index);
  if (parsed.ec == std::errc() && parsed.ptr == digits.data() + digits.size()) task.index = index;
  return task;
}

std::optional<Task> lost_task(const Error& error) {
  // User code may throw any code, which does not mean that its worker is lost.
  if (error.cause() == ErrorCause::application) return std::nullopt;
  const std::optional<Task> task = task_of(error.origin());
  if (!task) return std::nullopt;
  for (const LostTaskRow& row : kLostTaskRows) {
    if (row.job != task->job || row.code != error.code()) continue;
    if (!row.cause || *row.cause == error.cause()) return task;
  }
  return std::nullopt;
}

}  // namespace

std::optional<int> failed_ps(const Error& error) {
  const std::optional<Task> task = lost_task(error);
  if (!task || task->job != Job::ps) return std::nullopt;
  return task->index;
}

bool is_worker_failure(const Error& error) {
  const std::optional<Task> task = lost_task(error);
  return task && task->job == Job::worker;
}

bool is_worker_away(const Error& error) {
  return error.cause() == ErrorCause::peer_lost || error.cause() == ErrorCause::handle_lost ||
         error.code() == ErrorCode::deadline_exceeded;
}

bool is_broken_resource(const Error& error) {
  return error.code() == ErrorCode::failed_precondition &&
         error.cause() == ErrorCause::closure_input;
}

Error as_ps_unavailable(const Error& error, std::size_t worker) {
  return rpc::as_lost_server(error).during("running a closure on worker:" + std::to_string(worker));
}

FailurePolicy::FailurePolicy(FailureOptions options, std::size_t workers) : options_(options) {
  if (options_.timeouts_max == -1) options_.timeouts_max = static_cast<int>(workers / 10);
}

FailureClass FailurePolicy::classify(const Error& error, bool is_cancelling, TimePoint now) {
  if (const std::optional<int> ps = failed_ps(error)) {
    Reports& reports = ps_failures_[*ps];
    if (is_ignored(reports, options_.ps_failures_max, options_.same_event, now)) {
      return FailureClass::transient_ps;
    }
  }
  if (error.code() == ErrorCode::deadline_exceeded && error.cause() != ErrorCause::application &&
      is_ignored(timeouts_, options_.timeouts_max, Duration::zero(), now)) {
    return FailureClass::transient_timeout;
  }
  if (error.code() == ErrorCode::cancelled && error.cause() == ErrorCause::cancelled_by_job) {
    return FailureClass::cancelled_by_job;
  }
  if (!is_worker_failure(error) || is_cancelling) return FailureClass::application;
  return FailureClass::worker_failure;
}

bool FailurePolicy::is_ignored(Reports& reports, int reports_max, Duration same_event,
                               TimePoint now) const {
  if (reports_max <= 0) return false;
  while (!reports.empty() && now - reports.front() > options_.window) reports.pop_front();
  const bool is_new = reports.empty() || now - reports.back() >= same_event;
  if (is_new) reports.push_back(now);
  // Older reports cannot change the result.
  while (reports.size() > static_cast<std::size_t>(reports_max)) reports.pop_front();
  return reports.size() < static_cast<std::size_t>(reports_max);
}

}  // namespace cohort::coordinator
