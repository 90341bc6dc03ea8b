// SPDX-License-Identifier: Apache-2.0
// Errors in messages and saved positions: code, cause, message, origin, incarnation and context
// come back as they were.
#pragma once

#include <exception>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort {

// What `exception` holds as an Error, as current_error() has it; it must hold something.
COHORT_API Error error_in(const std::exception_ptr& exception);

COHORT_API void write_error(ByteWriter& out, const Error& error);
// A code and a cause of a later version are unknown and none. data_loss where the bytes end early.
COHORT_API Error read_error(ByteReader& in);

}  // namespace cohort
