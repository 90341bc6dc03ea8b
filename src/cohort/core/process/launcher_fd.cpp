// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/process/launcher_fd.h"

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace cohort {

int launcher_fd(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return -1;
  int fd = -1;
  const char* const end = text + std::strlen(text);
  const auto read = std::from_chars(text, end, fd);
  return read.ec == std::errc() && read.ptr == end ? fd : -1;
}

}  // namespace cohort
