// SPDX-License-Identifier: Apache-2.0
// Finds the name that may be meant by a misspelled one.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// The number of single characters to insert, remove or replace, and of neighbours to exchange, that
// turns one text into the other. Capital letters count as small ones.
COHORT_API std::size_t spelling_distance(std::string_view a, std::string_view b);

// "; did you mean 'momentum'?" for "momentun": the known name that is nearest, or of which `name`
// is the beginning, or the other way round. Empty if no known name is similar, or if `name` is one
// of them. Thread-safe.
COHORT_API std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

// Logs a warning for each variable of the environment whose name begins with COHORT_ and is almost,
// but not quite, one that programs read (docs/environment.md). run_main() and the `cohort` command
// call it first. Others are taken for variables of the user's own. Reads the environment, so no
// other thread may change that meanwhile.
COHORT_API void warn_of_misspelled_variables();

}  // namespace cohort
