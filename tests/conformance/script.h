// SPDX-License-Identifier: Apache-2.0
// The actions of a case and their results (FORMAT.md, 5 and 6).
#pragma once

#include <memory>

#include "tests/conformance/case_state.h"
#include "tests/conformance/json.h"
#include "tests/conformance/stream.h"

namespace cohort::conformance {

// Runs the default script: sets `elements`, or `iter_error`.
void run_default(const Json& test_case, const Subject& subject, Json& outcome);
// Returns one entry per command of the case's script. An unknown verb is a CaseFault.
Json run_script(const Json& script, const Subject& subject, const CaseState& state);
// Sets what the case asks for: `out`, or `elements`, or neither (no_iterate).
void run_actions(const Json& test_case, const Subject& subject, const CaseState& state,
                 Json& outcome);

// The scalars of all leaves of JSON values, in order.
Json scalars_of(const Json& value);

}  // namespace cohort::conformance
