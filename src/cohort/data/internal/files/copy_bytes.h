// SPDX-License-Identifier: Apache-2.0
// Copying many bytes at the speed of memory whatever their alignment.
//
// For more than about 2 KiB the C library takes the processor's instruction for copies, which on
// some processors is ten times slower where the target lies a few bytes behind the source modulo 64
// (glibc bug 30994). Pieces do without it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace cohort::data {

inline constexpr std::size_t kCopyPieceBytes = 1 << 10;

// May overlap where `to` lies before `from`.
inline void copy_forwards(const char* from, std::size_t count, char* to) {
  while (count > 0) {
    const std::size_t piece = std::min(count, kCopyPieceBytes);
    std::memmove(to, from, piece);
    from += piece;
    to += piece;
    count -= piece;
  }
}

inline void append_bytes(std::string_view from, std::string& to) {
  for (; from.size() > kCopyPieceBytes; from.remove_prefix(kCopyPieceBytes)) {
    to.append(from.data(), kCopyPieceBytes);
  }
  to.append(from);
}

}  // namespace cohort::data
