// SPDX-License-Identifier: Apache-2.0
// Whether the outcome of a step is what a strategy case expects (FORMAT.md, 2 and 4).
#pragma once

#include <string>

#include "cohort/core/error.h"
#include "tests/conformance/json.h"

namespace cohort::conformance::strategy {

// The outcome of a step.
struct Outcome {
  Json value;  // as json_of_value() writes it
  Json error;  // null, or {"user", "code", "message"}
  Json emits = Json::object();
};

// The first difference from what the step records or recommends; empty if there is none. Throws a
// CaseFault for an expectation that it does not know.
std::string difference(const Json& step, const Outcome& got, double tolerance);

std::string in_lower_case(std::string text);

// The code of an error that a case raises: "Aborted", "OpError:Aborted", "AbortedError",
// "ValueError". Throws a CaseFault for another name.
ErrorCode code_of_kind(std::string name);

// Whether `got` is the expected value.
bool is_value_equal(const Json& expected, const Json& got, double tolerance);

}  // namespace cohort::conformance::strategy
