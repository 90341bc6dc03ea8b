// SPDX-License-Identifier: Apache-2.0
// Copying many bytes at the speed of memory whatever their alignment.
//
// For more than about 2 KiB the C library takes the processor's instruction for copies, which on
// some processors is ten times slower where the target lies a few bytes behind the source modulo 64
// (glibc bug 30994), and compilers take it where they know how many bytes a piece has at most.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace cohort::data {

inline constexpr std::size_t kCopyPieceBytes = 1 << 10;

// The size of the next piece, as a number the compiler knows nothing about.
inline std::size_t piece_of(std::size_t count) {
  std::size_t piece = std::min(count, kCopyPieceBytes);
  asm volatile("" : "+r"(piece));
  return piece;
}

// May overlap where `to` lies before `from`.
inline void copy_forwards(const char* from, std::size_t count, char* to) {
  while (count > 0) {
    const std::size_t piece = piece_of(count);
    std::memmove(to, from, piece);
    from += piece;
    to += piece;
    count -= piece;
  }
}

inline void append_bytes(std::string_view from, std::string& to) {
  while (!from.empty()) {
    const std::size_t piece = piece_of(from.size());
    to.append(from.data(), piece);
    from.remove_prefix(piece);
  }
}

}  // namespace cohort::data
