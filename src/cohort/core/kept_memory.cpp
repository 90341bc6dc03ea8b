// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/kept_memory.h"

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace cohort {

void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kFromMemoryMax = 64 << 20;  // bytes; the arena of a thread has no larger pieces
  constexpr int kKeptMax = 256 << 20;
  for (const char* name : {"GLIBC_TUNABLES", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"}) {
    if (std::getenv(name) != nullptr) return;
  }
  ::mallopt(M_MMAP_THRESHOLD, kFromMemoryMax);
  ::mallopt(M_TRIM_THRESHOLD, kKeptMax);
#endif
}

}  // namespace cohort
