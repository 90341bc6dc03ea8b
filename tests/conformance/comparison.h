// SPDX-License-Identifier: Apache-2.0
// Whether an outcome is what a case expects (FORMAT.md, 5).
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/json.h"

namespace cohort::conformance {

struct Difference {
  std::string where;  // such as "elements[3]" or "check window"
  std::string expected;
  std::string got;
};

// The differences between `expected` (as in the case file) and `got`, without the checks. Unordered
// parts are compared as the case says. A field of `expected` that is missing in `got` is a
// difference.
std::vector<Difference> differences(const Json& test_case, const Json& expected, const Json& got);

// The case's checks that do not hold for `got`. `again` is the outcome of a second run, for
// rebuild_same. An unknown check is a CaseFault.
std::vector<Difference> failed_checks(const Json& test_case, const Json& got, const Json& again);
// Whether a check needs a second run.
bool needs_second_run(const Json& test_case);

}  // namespace cohort::conformance
