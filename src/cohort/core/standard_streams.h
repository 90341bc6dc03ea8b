// SPDX-License-Identifier: Apache-2.0
// The descriptors 0, 1 and 2: standard input, output and error.
#pragma once

#include "cohort/core/export.h"

namespace cohort {

// Opens /dev/null in the place of each that is closed, as after `program <&- >&- 2>&-`. Else the
// next socket or file that the process opens gets the number, and what is printed goes into it. For
// the start of main(), before anything is opened: run_main() and `cohort` do it. What a library has
// opened before main() keeps its number.
COHORT_API void open_standard_streams() noexcept;

}  // namespace cohort
