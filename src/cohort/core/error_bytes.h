// SPDX-License-Identifier: Apache-2.0
// Errors as bytes, for messages and saved positions. Code, cause, message, origin, incarnation and
// the first 64 lines of context are preserved.
#pragma once

#include <exception>
#include <optional>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort {

// Converts `exception`, which must not be null, as current_error() does.
COHORT_API Error error_in(const std::exception_ptr& exception);

COHORT_API void write_error(ByteWriter& out, const Error& error);
// A code or a cause that only a later version knows becomes `unknown` or `none`. Throws data_loss
// where the bytes end early.
COHORT_API Error read_error(ByteReader& in);
// A byte that tells whether there is an error, then the error.
COHORT_API void write_optional_error(ByteWriter& out, const std::optional<Error>& error);
COHORT_API std::optional<Error> read_optional_error(ByteReader& in);

}  // namespace cohort
