// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/huge_pages.h"

#include <ATen/core/TensorBody.h>
#include <sys/mman.h>

#include <cstdint>

namespace cohort {

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
