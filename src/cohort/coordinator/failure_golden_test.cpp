// SPDX-License-Identifier: Apache-2.0
// The recorded cases of the classification of failures. Their other steps need a cluster.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/coordinator/queue/failure_policy.h"
#include "cohort/core/error.h"

namespace cohort::coordinator {
namespace {

using nlohmann::json;

const std::map<std::string, ErrorCode>& codes() {
  static const std::map<std::string, ErrorCode> table = {
      {"Cancelled", ErrorCode::cancelled},
      {"Unknown", ErrorCode::unknown},
      {"InvalidArgument", ErrorCode::invalid_argument},
      {"DeadlineExceeded", ErrorCode::deadline_exceeded},
      {"NotFound", ErrorCode::not_found},
      {"AlreadyExists", ErrorCode::already_exists},
      {"PermissionDenied", ErrorCode::permission_denied},
      {"ResourceExhausted", ErrorCode::resource_exhausted},
      {"FailedPrecondition", ErrorCode::failed_precondition},
      {"Aborted", ErrorCode::aborted},
      {"OutOfRange", ErrorCode::out_of_range},
      {"Unimplemented", ErrorCode::unimplemented},
      {"Internal", ErrorCode::internal},
      {"Unavailable", ErrorCode::unavailable},
      {"DataLoss", ErrorCode::data_loss},
      {"Unauthenticated", ErrorCode::unauthenticated},
      // Kinds of exceptions.
      {"ValueError", ErrorCode::invalid_argument},
      {"TypeError", ErrorCode::invalid_argument},
      {"AssertionError", ErrorCode::invalid_argument},
      {"RuntimeError", ErrorCode::failed_precondition},
      {"NotImplementedError", ErrorCode::unimplemented},
      {"IndexError", ErrorCode::out_of_range},
      {"KeyError", ErrorCode::not_found},
  };
  return table;
}

// "Aborted", "OpError:Aborted", "AbortedError", "ValueError".
ErrorCode code_of(std::string name) {
  if (name.rfind("OpError:", 0) == 0) name = name.substr(8);
  auto found = codes().find(name);
  if (found == codes().end() && name.size() > 5)
    found = codes().find(name.substr(0, name.size() - 5));
  COHORT_CHECK(found != codes().end(), ErrorCode::unimplemented, "unknown kind of error '", name,
               "'");
  return found->second;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

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
  const ErrorCode code = code_of(code_name);
  const std::string text = lower(message);
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

// ---- classes of failure

bool is_failure_step(const json& step) {
  return step.value("do", "") == "classify" || step.value("do", "") == "transient";
}

json classify(const json& step) {
  const Error error = structured_error(step.at("code"), step.at("msg"), step.value("inside", ""));
  return {{"ps", failed_ps(error).has_value()}, {"worker", is_worker_failure(error)}};
}
json transient(FailurePolicy& policy, const json& step) {
  const std::string which = step.at("which");
  const bool is_ps = which.find("ps") != std::string::npos;
  COHORT_CHECK(is_ps || which.find("timeout") != std::string::npos, ErrorCode::unimplemented,
               "unknown step ", step.dump());
  const std::string code = step.value("code", is_ps ? "Unavailable" : "DeadlineExceeded");
  const FailureClass found =
      policy.classify(structured_error(code, step.value("msg", ""), ""), false, {});
  return found == (is_ps ? FailureClass::transient_ps : FailureClass::transient_timeout);
}

FailureOptions options_of(const json& steps) {
  FailureOptions options;
  for (const json& step : steps) {
    if (step.value("do", "") != "setenv") continue;
    const json env = step.at("env");
    const auto read = [&](const char* name, int& value) {
      if (env.contains(name) && env[name].is_string())
        value = std::stoi(env[name].get<std::string>());
    };
    read("TF_COORDINATOR_IGNORE_TRANSIENT_PS_FAILURES", options.ps_failures_max);
    read("TF_COORDINATOR_IGNORE_TRANSIENT_TIMEOUTS", options.timeouts_max);
  }
  return options;
}

// ---- the cases

json cases_of(const std::string& file) {
  std::ifstream stream(COHORT_SOURCE_DIR "/tests/conformance/strategy/" + file);
  return stream ? json::parse(stream) : json::array();
}

struct GoldenCase {
  json content;
  friend void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.content["id"]; }
};

std::vector<GoldenCase> failure_cases() {
  std::vector<GoldenCase> cases;
  for (const char* file : {"coordinator.json", "faults.json"}) {
    for (const json& c : cases_of(file)) {
      if (std::any_of(c["steps"].begin(), c["steps"].end(), is_failure_step)) cases.push_back({c});
    }
  }
  return cases;
}

// Regression: a missing file had no cases, and no test failed.
TEST(FailureGoldenFiles, HaveCases) {
  for (const char* file : {"coordinator.json", "faults.json"})
    EXPECT_FALSE(cases_of(file).empty()) << file;
  EXPECT_GE(failure_cases().size(), 1);
}

class FailureGolden : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(FailureGolden, IsClassifiedAsRecorded) {
  const json& steps = GetParam().content["steps"];
  const json strategy = GetParam().content.value("strategy", json::object());
  FailurePolicy policy(options_of(steps), strategy.value("workers", std::size_t{1}));
  for (const json& step : steps) {
    if (!is_failure_step(step)) continue;
    const json got = step["do"] == "classify" ? classify(step) : transient(policy, step);
    const json recommended = step.value("recommended", json::object());
    EXPECT_TRUE(got == step["expect"] || got == recommended.value("expect", json()))
        << step << " gave " << got;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, FailureGolden, ::testing::ValuesIn(failure_cases()),
                         [](const ::testing::TestParamInfo<GoldenCase>& test) {
                           std::string name = test.param.content["id"];
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace cohort::coordinator
