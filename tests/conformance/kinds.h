// SPDX-License-Identifier: Apache-2.0
// The kinds of cases (FORMAT.md, 7): each runs a case and gives what it yields, in the form of
// `expect`.
#pragma once

#include <map>
#include <string>

#include "cohort/data/dataset.h"
#include "tests/conformance/json.h"

namespace cohort::conformance {

using Kind = Json (*)(const Json& test_case);
const std::map<std::string, Kind>& kinds();

// One for each kind.
Json run_dataset(const Json& test_case);
Json run_optional(const Json& test_case);
Json run_input_context(const Json& test_case);

}  // namespace cohort::conformance
