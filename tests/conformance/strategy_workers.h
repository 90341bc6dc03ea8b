// SPDX-License-Identifier: Apache-2.0
// Runs the workers of a case of MultiWorkerMirroredStrategy: each is a process, or a thread that
// forms groups as a process does.
#pragma once

#include <cstddef>
#include <functional>

#include "tests/conformance/json.h"
#include "tests/conformance/runner.h"
#include "tests/conformance/strategy_case.h"

namespace cohort::conformance::strategy {

// Does the steps of a case, as one worker of it if there are several, and calls `begins` before
// each (strategy_runner.cpp).
Verdict run_steps(StrategyCase& test, const Json& content,
                  const std::function<void(std::size_t step)>& begins);
// Whether any step, or step of a body, is of this kind.
bool has_step(const Json& steps, const char* kind);

// Every worker must pass; the verdict names those that do not.
Verdict run_workers(const Json& content, const WorkerOptions& options);

}  // namespace cohort::conformance::strategy
