// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/kept_memory.h"

#include <ATen/core/TensorBody.h>
#include <sys/mman.h>

#include <cstdint>
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

void use_huge_pages(void* begin, std::size_t bytes) noexcept {
  if (bytes < kHugeBytesMin) return;
  const auto first = reinterpret_cast<std::uintptr_t>(begin);
  const std::uintptr_t from = (first + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
  const std::uintptr_t to = (first + bytes) / kHugePageBytes * kHugePageBytes;
  if (to > from) ::madvise(reinterpret_cast<void*>(from), to - from, MADV_HUGEPAGE);
}

at::Tensor in_huge_pages(at::Tensor fresh) {
  if (fresh.is_cpu()) use_huge_pages(fresh.data_ptr(), fresh.nbytes());
  return fresh;
}

}  // namespace cohort
