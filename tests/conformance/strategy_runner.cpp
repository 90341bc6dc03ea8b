// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_runner.h"

#include <algorithm>
#include <functional>
#include <string>

#include "tests/conformance/strategy_outcome.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_workers.h"

namespace cohort::conformance::strategy {
namespace {

bool is_any_step(const Json& steps, const std::function<bool(const Json&)>& is_it) {
  return std::any_of(steps.begin(), steps.end(), [&](const Json& step) {
    if (!step.is_object()) return false;
    return is_it(step) || (step.contains("body") && is_any_step(step["body"], is_it));
  });
}

// Why the runner cannot run the case. It interprets steps in run(), where a merge_call in a nested
// function or a loop works; merge_call_test.cpp checks that a step of Strategy::function() refuses
// it (decision 0065). For the same reason there is no trace to count.
std::string reason_to_skip(const Json& content) {
  const auto enters_device = [](const Json& step) { return step.value("what", "") == "device"; };
  if (is_any_step(member(content, "steps"), enters_device) && content.value("id", "") == "MWS-054")
    return "LibTorch's guards of devices are no scopes of the library";
  const auto is_merge = [](const Json& step) { return step.value("do", "") == "merge_call"; };
  const auto captures_dataset = [](const Json& step) { return step.value("captured", false); };
  if (is_any_step(content["steps"], captures_dataset))
    return "a dataset of the library is a description, so a function may capture one";
  const auto is_of_servers = [](const Json& step) { return step.value("do", "") == "def_fn"; };
  const bool has_coordinator = is_any_step(content["steps"], is_of_servers);
  const auto needs_graph = [&](const Json& step) {
    const std::string name = step.value("do", "");
    if (name == "trace_count" || (name == "traces" && !has_coordinator)) return true;
    const bool has_graph = name == "while" || (name == "call" && step.value("compiled", false));
    return has_graph && is_any_step(step.value("body", Json::array()), is_merge);
  };
  return is_any_step(member(content, "steps"), needs_graph)
             ? "needs compiled functions, and the runner interprets steps"
             : "";
}

Outcome outcome_of(StrategyCase& test, Frame& top, const Json& step) {
  Outcome outcome;
  try {
    const Value result = do_step(test, top, step);
    const Json& recommended = step.value("recommended", Json::object());
    if (step.contains("expect") || recommended.contains("expect")) {
      outcome.value = json_of_value(test, top, result);
    }
  } catch (...) {
    outcome.error = caught_error_json()["error"];
  }
  outcome.emits = test.take_emits();
  return outcome;
}

}  // namespace

bool is_strategy_case(const Json& content) {
  // Cases of pipelines have a kind, and some have steps too.
  return content.contains("steps") && !content.contains("kind");
}

namespace {

// The step as this worker does it, with the outcome that it has there.
Json step_of_worker(const Json& step, std::size_t worker) {
  if (!step.contains("by_worker")) return step;
  Json own = step;
  own.erase("by_worker");
  own.update(step["by_worker"].at(worker));
  return own;
}

}  // namespace

bool has_step(const Json& steps, const char* kind) {
  return is_any_step(steps, [&](const Json& step) { return step.value("do", "") == kind; });
}

Verdict run_steps(StrategyCase& test, const Json& content,
                  const std::function<void(std::size_t step)>& begins) {
  // TensorFlow multiplies a mean over workers by a rounded 1 / n.
  const double tolerance = member_or(content, "tol", test.workers() == 1 ? 0.0 : 2e-7);
  Frame top;  // destroyed first: it may be inside of scopes
  Json steps = member(content, "steps");
  for (Json& step : steps) step = step_of_worker(step, test.worker());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto at_step = [&](const std::string& text) {
      return "step " + std::to_string(i) + " " + brief(steps[i], 160) + ":\n  " + text;
    };
    begins(i);
    try {
      const std::string found = difference(steps[i], outcome_of(test, top, steps[i]), tolerance);
      if (!found.empty()) return {Status::failed, at_step(found)};
    } catch (const CaseFault& fault) {
      return {Status::failed, at_step(fault.what())};
    }
  }
  return {};
}

Verdict run_strategy_case(const Json& content, const WorkerOptions& workers) {
  const std::string reason = reason_to_skip(content);
  if (!reason.empty()) return {Status::skipped, reason};
  const Json spec = member_or(content, "strategy", Json::object());
  if (spec.value("kind", "") == "multi_worker_mirrored") return run_workers(content, workers);
  WorkerPlace place;
  place.program = workers.program;
  StrategyCase test(content, place);
  return run_steps(test, content, [](std::size_t) {});
}

}  // namespace cohort::conformance::strategy
