// SPDX-License-Identifier: Apache-2.0
// The expressions of strategy cases (FORMAT.md, 3), evaluated in the context of this thread.
#pragma once

#include <ATen/core/Tensor.h>

#include "tests/conformance/json.h"
#include "tests/conformance/strategy_case.h"
#include "tests/conformance/strategy_value.h"

namespace cohort::conformance::strategy {

// Throws a CaseFault for an expression that it does not know.
Value evaluate(StrategyCase& test, Frame& frame, const Json& expression);

// A tensor of the value, as operators take it: that of a variable in the current context; a host
// constant as float32, int32, bool or text; of a mirrored value one component.
at::Tensor tensor_from(StrategyCase& test, const Value& value);
// The variable as an operand of tf's operators: its component in a replica, also in a
// SyncOnReadScope; else its value.
at::Tensor operand_of(StrategyCase& test, const Variable& variable);
// tf's conversion of the variable to a tensor.
at::Tensor converted(StrategyCase& test, const Variable& variable);
// The value with its variables replaced by their tensors.
Value with_values(StrategyCase& test, const Value& value);
// The value with its numbers as tensors of tf's dtypes, int32 and float32; the library's are int64
// and float32.
Value with_number_tensors(StrategyCase& test, const Value& value);
// Throws failed_precondition in cross-replica context.
const ReplicaContext& current_replica();
// The tuple of the value's local components.
Value local_results_of(StrategyCase& test, Strategy& strategy, const Value& value);
// The tensors of the variable's components.
Json components_as_json(StrategyCase& test, const Variable& variable);
// As results are written, and, if they are variables, with their names.
Json json_of_value(StrategyCase& test, const Frame& frame, const Value& value);

}  // namespace cohort::conformance::strategy
