// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/host_memory.h"

#include <unistd.h>

#include <algorithm>

namespace cohort {

std::uint64_t host_memory_bytes() {
  static const auto bytes = static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PHYS_PAGES))) *
                            static_cast<std::uint64_t>(std::max(0L, ::sysconf(_SC_PAGESIZE)));
  return bytes;
}

}  // namespace cohort
