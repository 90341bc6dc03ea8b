// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/output.h"

#include <cerrno>
#include <cstdio>

#include "cohort/core/system_error.h"

namespace cohort::cli {

void print(std::string_view text) {
  errno = 0;
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (is_written && std::fflush(stdout) == 0) return;
  const int number = errno;
  std::clearerr(stdout);
  throw output_error("standard output", number);
}

Error output_error(const std::string& what, int number) {
  return Error(code_of_errno(number, ErrorCode::cancelled),
               "[cli.output] expected to write to " + what + ", got: " + text_of_errno(number) +
                   "; see what reads it, and whether its disk is full");
}

}  // namespace cohort::cli
