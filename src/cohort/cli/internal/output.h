// SPDX-License-Identifier: Apache-2.0
// What the command itself prints: nothing of it is lost without a word.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::cli {

// Writes to standard output at once. Throws output_error() when not all of it could be written.
void print(std::string_view text);
// resource_exhausted for a full disk, cancelled for a reader that has gone; both are exit code 75.
// `what` could not be written because of this errno.
Error output_error(const std::string& what, int number);

}  // namespace cohort::cli
