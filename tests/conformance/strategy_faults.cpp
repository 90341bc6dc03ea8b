// SPDX-License-Identifier: Apache-2.0
// Steps that kill and start servers, wait, and classify failures.
#include <algorithm>
#include <cctype>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>

#include "cohort/coordinator/failure_policy.h"
#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "tests/conformance/strategy_outcome.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {

void pause(std::chrono::nanoseconds duration) {
  std::mutex mutex;
  std::unique_lock lock(mutex);
  std::condition_variable().wait_for(lock, duration, [] { return false; });
}

std::chrono::nanoseconds seconds_in(const Json& json, const char* key, double otherwise) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(member_or(json, key, otherwise)));
}

namespace {

// --- servers ------------------------------------------------------------------------------------

std::string task_in(const Step& step) {
  return step.text("job") + ":" + std::to_string(member(step.json, "task").get<int>());
}

Value kill(const Step& step) {
  step.test.cluster().kill(task_in(step));
  return {};
}

Value restart(const Step& step) {
  step.test.cluster().restart(task_in(step), std::chrono::duration_cast<std::chrono::milliseconds>(
                                                 seconds_in(step.json, "after", 0)));
  return {};
}

// --- waiting ------------------------------------------------------------------------------------

// With several workers that are processes, longer than another worker waits: the runner ends the
// workers together, so none need wait there.
Value sleep(const Step& step) {
  if (step.test.has_cluster()) pause(seconds_in(step.json, "s", 0));
  return {};
}

// Longer than a loaded machine needs for a closure.
constexpr auto kWaitLimit = std::chrono::seconds(40);
constexpr auto kReadPause = std::chrono::milliseconds(10);

bool has_at_least(const Step& step) {
  return step.variable().read().item<double>() >= member(step.json, "n").get<double>();
}

Value is_at_least(const Step& step) { return Value::of_json(has_at_least(step)); }

Value wait_at_least(const Step& step) {
  const Deadline deadline = Deadline::after(kWaitLimit);
  while (!has_at_least(step)) {
    COHORT_CHECK(!deadline.has_expired(), ErrorCode::deadline_exceeded, "[conformance] expected '",
                 step.text("var"), "' to reach ", step.json["n"].dump(), " within ",
                 kWaitLimit.count(), " s");
    pause(kReadPause);
  }
  return {};
}

// Whether every read of the variable in this time has succeeded.
Value poll_read(const Step& step) {
  const Deadline deadline = Deadline::after(seconds_in(step.json, "s", 1));
  try {
    do {
      step.variable().read();
      pause(kReadPause);
    } while (!deadline.has_expired());
  } catch (const Error&) {
    return Value::of_json(false);
  }
  return Value::of_json(true);
}

// --- classes of failure -------------------------------------------------------------------------

// "worker:1" for a message with "/job:worker/replica:0/task:1" where `start`, which ends in a job
// or before it, occurs.
std::string task_after(const std::string& message, const std::string& start) {
  const std::size_t found = message.find(start);
  if (found == std::string::npos) return "";
  const std::size_t job = message.find("/job:", found) + 5;
  const std::string name = message.substr(job, message.find_first_of("/ ,;", job) - job);
  const std::size_t task = message.find("/task:", job);
  if (task == std::string::npos || message.find(' ', job) < task) return name;
  const std::size_t digits = task + 6;
  const std::size_t end = message.find_first_not_of("0123456789", digits);
  return name + ":" + message.substr(digits, end == std::string::npos ? end : end - digits);
}

Error structured_error(const std::string& code_name, const std::string& message,
                       const std::string& inside) {
  const ErrorCode code = code_of_kind(code_name);
  const std::string text = in_lower_case(message);
  const auto says = [&](const char* phrase) { return text.find(phrase) != std::string::npos; };
  ErrorCause cause = ErrorCause::none;
  if (code_name == "TypeError") {
    cause = says("binding inputs to tf.function failed") ? ErrorCause::input_binding
                                                         : ErrorCause::wrong_type;
  } else if (code == ErrorCode::invalid_argument &&
             (says("unknown device") || says("lost remote") || says("is not remote") ||
              says("unable to find the relevant tensor remote_handle"))) {
    cause = ErrorCause::handle_lost;
  } else if (code == ErrorCode::not_found && says("is neither a type of a primitive operation nor "
                                                  "a name of a function registered")) {
    cause = ErrorCause::function_missing;
  } else if (code == ErrorCode::cancelled && says("/job:") && inside == "job") {
    cause = ErrorCause::cancelled_by_job;
  } else if (!inside.empty()) {
    cause = inside == "input" ? ErrorCause::closure_input : ErrorCause::closure_aborted;
  }
  // The remote target of the RPC is the origin; without one the worker that the message names.
  std::string origin = task_after(message, "remote target /job:");
  if (origin.empty()) origin = task_after(message, "/job:worker");
  return Error(code, message, cause).at(origin);
}

Value classify(const Step& step) {
  const Error error =
      structured_error(step.text("code"), step.text("msg"), step.text_or("inside", ""));
  return Value::of_json({{"ps", coordinator::failed_ps(error).has_value()},
                         {"worker", coordinator::is_worker_failure(error)}});
}

int number_in_environment(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoi(text);
}

// The failures that the case has reported so far.
struct Reports {
  std::optional<coordinator::FailurePolicy> policy;
};

Value is_transient(const Step& step) {
  std::optional<coordinator::FailurePolicy>& policy = step.test.kept<Reports>().policy;
  if (!policy) {
    coordinator::FailureOptions options;
    options.ps_failures_max = number_in_environment("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES",
                                                    options.ps_failures_max);
    options.timeouts_max =
        number_in_environment("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", options.timeouts_max);
    policy.emplace(options, static_cast<std::size_t>(step.test.cluster().workers()));
  }
  const std::string which = step.text("which");
  const bool is_ps = which.find("ps") != std::string::npos;
  if (!is_ps && which.find("timeout") == std::string::npos)
    throw CaseFault("unknown kind of failure '" + which + "'");
  const Error error =
      structured_error(step.text_or("code", is_ps ? "Unavailable" : "DeadlineExceeded"),
                       step.text_or("msg", ""), "");
  return Value::of_json(policy->classify(error, false, {}) ==
                        (is_ps ? coordinator::FailureClass::transient_ps
                               : coordinator::FailureClass::transient_timeout));
}

}  // namespace

const StepTable& fault_steps() {
  static const StepTable table = {
      {"kill", {kill, {"job", "task"}}},
      {"restart", {restart, {"job", "task", "after"}}},
      {"sleep", {sleep, {"s"}}},
      {"at_least", {is_at_least, {"var", "n"}}},
      {"wait_at_least", {wait_at_least, {"var", "n"}}},
      {"poll_read", {poll_read, {"var", "s"}}},
      {"classify", {classify, {"code", "msg", "inside"}}},
      {"transient", {is_transient, {"which", "code", "msg"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
