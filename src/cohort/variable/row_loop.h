// SPDX-License-Identifier: Apache-2.0
// The loop over rows of a table that is larger than the processor's caches.
#pragma once

#include <algorithm>
#include <cstddef>
#include <type_traits>

namespace cohort::variable {

// So many rows ahead, the processor begins to load a row. A random row of a large table is in no
// cache, and without this the loop waits for each one.
inline constexpr std::size_t kRowsAhead = 16;
inline constexpr std::size_t kCacheLine = 64;
// A longer row is loaded early in part: the processor guesses the rest.
inline constexpr std::size_t kEarlyBytes = 4 * kCacheLine;

inline void load_early(const std::byte* row, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(row + at);
}

// Calls visit(i) for one i after the other, from `begin` to `end`, and load(i) some calls before.
template <class Number, class Load, class Visit>
void for_each_loaded_early(Number begin, Number end, const Load& load, const Visit& visit) {
  constexpr auto kAhead = static_cast<Number>(kRowsAhead);
  for (Number i = begin; i < end && i < begin + kAhead; ++i) load(i);
  for (Number i = begin; i < end; ++i) {
    if (i + kAhead < end) load(i + kAhead);
    visit(i);
  }
}

// Calls visit(row_of(i), i) for one i after the other, up to `count`. `row_of` returns where row i
// begins, without reading it. A row has this many bytes.
template <class RowOf, class Visit>
void for_each_row(std::size_t count, std::size_t bytes, const RowOf& row_of, const Visit& visit) {
  const std::size_t loaded = std::min<std::size_t>(bytes, kEarlyBytes);
  for_each_loaded_early(
      std::size_t{0}, count, [&](std::size_t i) { load_early(row_of(i), loaded); },
      [&](std::size_t i) { visit(row_of(i), i); });
}

// Calls copy(bytes). Rows of 16 numbers are common, and a copy of a size that the compiler knows
// costs a few instructions.
template <class Copy>
void with_row_size(std::size_t bytes, const Copy& copy) {
  if (bytes == 64) return copy(std::integral_constant<std::size_t, 64>());
  if (bytes == 128) return copy(std::integral_constant<std::size_t, 128>());
  if (bytes == 256) return copy(std::integral_constant<std::size_t, 256>());
  copy(bytes);
}

}  // namespace cohort::variable
