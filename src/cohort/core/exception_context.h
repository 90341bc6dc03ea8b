// SPDX-License-Identifier: Apache-2.0
// Facts about an exception that is not an Error, and so has no place for them.
#pragma once

#include <exception>
#include <string>

#include "cohort/core/export.h"

namespace cohort::internal {

// From now on, current_error() of this exception on this thread has the line "while `operation`".
// The exception itself stays as it is, so that a program can catch its own types. A thread
// remembers one exception, the last.
COHORT_API void note_context(std::exception_ptr exception, std::string operation);

}  // namespace cohort::internal
