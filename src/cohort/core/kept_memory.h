// SPDX-License-Identifier: Apache-2.0
// Memory of large tensors: kept for the next step, and in huge pages.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace cohort {

// Makes malloc keep up to 256 MiB of freed memory, and allocate tensors of up to 64 MiB from it.
// Each step frees and allocates the same large tensors, and mapping new pages for them would take
// as long as computing them. This is for the whole process. It does nothing if the environment sets
// malloc's thresholds, or if the C library is not glibc.
void keep_freed_memory();

// A processor remembers the places of some thousand pages. In a large table of small ones, each
// random row is in a page that it has to look up first, which halves the speed; and the first touch
// of each page is a trap into the system.
inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// From this size on, memory is worth huge pages.
inline constexpr std::size_t kHugeBytesMin = 2 * kHugePageBytes;

// Asks the system for huge pages for the whole ones among these bytes, which nobody has written
// to yet; it may have none. Does nothing for fewer bytes than kHugeBytesMin. Thread-safe.
void use_huge_pages(void* begin, std::size_t bytes) noexcept;
// The same for a dense tensor, unless it is on another device; returns it.
at::Tensor in_huge_pages(at::Tensor fresh);

}  // namespace cohort
