// SPDX-License-Identifier: Apache-2.0
// The steps of strategy cases (FORMAT.md, 5). One more step is a function and a row in the table of
// its group.
#pragma once

#include <chrono>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "tests/conformance/json.h"
#include "tests/conformance/strategy_case.h"
#include "tests/conformance/strategy_expressions.h"
#include "tests/conformance/strategy_value.h"

namespace cohort::conformance::strategy {

// A step that is being done.
struct Step {
  StrategyCase& test;
  Frame& frame;
  const Json& json;

  bool has(const char* key) const { return json.contains(key) && !json[key].is_null(); }
  std::string text(const char* key) const { return member(json, key).get<std::string>(); }
  std::string text_or(const char* key, const char* otherwise) const {
    return member_or<std::string>(json, key, otherwise);
  }
  // The expression under `key`; null if there is none.
  Value value(const char* key) const {
    return json.contains(key) ? evaluate(test, frame, json[key]) : Value();
  }
  // The variable whose name is under `key`. Throws a CaseFault if that is no variable.
  Variable variable(const char* key = "var") const;
  // The reduction under "op": a text, or "enum:SUM".
  ReduceOpOrName op() const;
  // The strategy under "strategy", else S.
  Strategy& strategy() const { return test.strategy(text_or("strategy", "S")); }
};

using StepFunction = Value (*)(const Step& step);
struct StepKind {
  StepFunction function;
  // Its parameters. A step with any other field is a CaseFault.
  std::vector<std::string_view> fields;
  // Whether "as" names the result; else the step itself uses it.
  bool binds_result = true;
};
using StepTable = std::map<std::string, StepKind>;

const StepTable& context_steps();        // strategy_contexts.cpp
const StepTable& function_steps();       // strategy_functions.cpp
const StepTable& cross_replica_steps();  // strategy_cross_replica.cpp
const StepTable& update_steps();         // strategy_updates.cpp
const StepTable& replica_steps();        // strategy_replica_steps.cpp
const StepTable& variable_steps();       // strategy_variables.cpp
const StepTable& checkpoint_steps();     // strategy_checkpoints.cpp
const StepTable& resolver_steps();       // strategy_resolvers.cpp
const StepTable& queue_steps();          // strategy_queue.cpp
const StepTable& partitioner_steps();    // strategy_partitioners.cpp
const StepTable& sharded_steps();        // strategy_sharded.cpp
const StepTable& server_steps();         // strategy_servers.cpp
const StepTable& training_steps();       // strategy_training.cpp
const StepTable& coordinator_steps();    // strategy_coordinator.cpp
const StepTable& fault_steps();          // strategy_faults.cpp
const StepTable& v1_steps();             // strategy_v1.cpp

// Does one step and binds its result. Throws what it throws, and a CaseFault if it is unknown.
Value do_step(StrategyCase& test, Frame& frame, const Json& step);
void do_steps(StrategyCase& test, Frame& frame, const Json& steps);

// --- functions that steps define
// ------------------------------------------------------------------

// The arguments of `args` and `kwargs`, as a map with the entries "args" and "kwargs".
Value arguments_of(const Step& step);
// Calls the function that `step` defines by `body` and `return`: binds a0, a1, … and the names of
// kwargs in `frame`.
Value call_function(const Step& step, Frame& frame, const Value& arguments);

// A compiled function returns tensors in the place of host constants.
Value compiled_result(StrategyCase& test, const Value& value);

// --- waiting
// --------------------------------------------------------------------------------------

void pause(std::chrono::nanoseconds duration);
// The number of seconds under `key`.
std::chrono::nanoseconds seconds_in(const Json& json, const char* key, double otherwise);

// --- errors
// ---------------------------------------------------------------------------------------

// {"error": {"user": whether it is a UserError, "code", "message"}} of the exception that is being
// handled. Rethrows a CaseFault.
Json caught_error_json();

}  // namespace cohort::conformance::strategy
