// SPDX-License-Identifier: Apache-2.0
// Runs strategy cases: those with `steps` (FORMAT.md of the strategy cases).
#pragma once

#include <string>

#include "tests/conformance/json.h"
#include "tests/conformance/runner.h"

namespace cohort::conformance::strategy {

bool is_strategy_case(const Json& content);
// In this process, which must not be inside of a strategy's scope, without a deadline. The workers
// of a case with several are as `workers` says.
Verdict run_strategy_case(const Json& content, const WorkerOptions& workers);

}  // namespace cohort::conformance::strategy
