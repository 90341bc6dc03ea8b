// SPDX-License-Identifier: Apache-2.0
// Copies many bytes at full memory speed for any alignment.
//
// For more than about 2 KiB the C library uses the processor's copy instruction (rep movsb). On
// some processors it is ten times slower if the target is a few bytes after the source modulo 64
// (glibc bug 30994). So these functions copy small pieces. The compiler must not know a piece's
// maximum size, since it would then use that instruction itself.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>

namespace cohort::data {

inline constexpr std::size_t kCopyPieceBytes = 1 << 10;

// The size of the next piece, hidden from the optimizer.
inline std::size_t piece_of(std::size_t count) {
  std::size_t piece = std::min(count, kCopyPieceBytes);
  asm volatile("" : "+r"(piece));
  return piece;
}

// The ranges may overlap if `to` is before `from`.
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
