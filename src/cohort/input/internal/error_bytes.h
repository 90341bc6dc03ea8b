// SPDX-License-Identifier: Apache-2.0
// Errors in votes and positions.
#pragma once

#include <exception>

#include "cohort/core/bytes.h"
#include "cohort/core/error.h"

namespace cohort::input {

Error error_of(const std::exception_ptr& error);

// Without the origin, which whoever reads it knows.
void write_error(ByteWriter& writer, const Error& error);
Error read_error(ByteReader& reader);

}  // namespace cohort::input
