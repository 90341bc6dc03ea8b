// SPDX-License-Identifier: Apache-2.0
// Whether an outcome is what a case expects (FORMAT.md, 5).
#pragma once

#include <string>
#include <vector>

#include "tests/conformance/json.h"

namespace cohort::conformance {

struct Difference {
  std::string where;  // "elements[3]", "check window"
  std::string expected;
  std::string got;
};

// What is different between `expected` (as in the case file) and `got`; checks aside. Unordered
// parts are compared as the case says. A field of `expected` that `got` has not is a difference.
std::vector<Difference> differences(const Json& test_case, const Json& expected, const Json& got);

// The case's checks that do not hold on `got`. `again` is what a second run yielded, for
// rebuild_same. An unknown check is a CaseFault.
std::vector<Difference> failed_checks(const Json& test_case, const Json& got, const Json& again);
// Whether a check needs a second run.
bool needs_second_run(const Json& test_case);

}  // namespace cohort::conformance
