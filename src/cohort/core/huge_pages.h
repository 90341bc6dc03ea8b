// SPDX-License-Identifier: Apache-2.0
// Large memory in huge pages. A processor remembers the places of some thousand pages. In a large
// table of small ones, each random row is in a page that it has to look up first, which halves the
// speed; and the first touch of each page is a trap into the system.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace cohort {

inline constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
// From this size on, memory is worth huge pages.
inline constexpr std::size_t kHugeBytesMin = 2 * kHugePageBytes;

// Asks the system for huge pages for the whole ones among these bytes, which nobody has written
// to yet; it may have none. Does nothing for fewer bytes than kHugeBytesMin. Thread-safe.
void use_huge_pages(void* begin, std::size_t bytes) noexcept;
// The same for a dense tensor, unless it is on another device; returns it.
at::Tensor in_huge_pages(at::Tensor fresh);

}  // namespace cohort
