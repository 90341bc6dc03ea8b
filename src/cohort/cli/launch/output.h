// SPDX-License-Identifier: Apache-2.0
// Prints the output of the command itself, with an error if it cannot be written.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::cli {

// Writes to standard output at once. Throws output_error() if it could not write everything.
void print(std::string_view text);
// The error that `what` could not be written because of this errno: resource_exhausted for a full
// disk, cancelled if the reader has closed the pipe. Both have exit code 75.
Error output_error(const std::string& what, int number);

}  // namespace cohort::cli
