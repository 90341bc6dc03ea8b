// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#if defined(COHORT_HAS_ISAL)
#include <isa-l/crc.h>

#include <limits>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace cohort {
namespace {

// The functions below take and return the checksum's complement, the algorithm's internal state.
constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}

std::uint32_t by_table(std::string_view bytes, std::uint32_t crc) {
  static constexpr std::array<std::uint32_t, 256> kTable = make_table();
  for (const char byte : bytes) {
    crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return crc;
}

#if defined(__x86_64__)
// For a short record the processor's instruction costs less than a call of the library.
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::string_view bytes,
                                                               std::uint32_t before) {
  std::uint64_t crc = before;
  const char* data = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; left -= 8, data += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  auto narrow = static_cast<std::uint32_t>(crc);
  for (; left > 0; --left, ++data) {
    narrow = _mm_crc32_u8(narrow, static_cast<unsigned char>(*data));
  }
  return narrow;
}

bool has_instruction() {
  static const bool found = __builtin_cpu_supports("sse4.2") != 0;
  return found;
}
#endif

std::uint32_t short_crc32c(std::string_view bytes, std::uint32_t crc) {
#if defined(__x86_64__)
  if (has_instruction()) return by_instruction(bytes, crc);
#endif
  return by_table(bytes, crc);
}

#if defined(COHORT_HAS_ISAL)
// From this length on, folding 16 bytes and more at once is faster.
constexpr std::size_t kFoldBytesMin = 256;

#if defined(__x86_64__)
__attribute__((target("avx"))) void zero_upper_halves() { _mm256_zeroupper(); }

// The library leaves bits in the upper halves of vector registers where it folds 64 bytes at once.
// Every SSE instruction that this thread runs afterwards would then also depend on the old value of
// its destination register: a parameter server's updates took 1.5 times as long.
void leave_registers_clean() {
  static const bool has_upper_halves = __builtin_cpu_supports("avx") != 0;
  if (has_upper_halves) zero_upper_halves();
}
#else
void leave_registers_clean() {}
#endif

std::uint32_t by_folding(std::string_view bytes, std::uint32_t crc) {
  while (!bytes.empty()) {
    const std::size_t piece =
        std::min<std::size_t>(bytes.size(), std::numeric_limits<int>::max() & ~0xFF);
    // The library's parameter is not const, although it does not write to the bytes.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<char*>(bytes.data()));
    crc = ::crc32_iscsi(data, static_cast<int>(piece), crc);
    bytes.remove_prefix(piece);
  }
  leave_registers_clean();
  return crc;
}
#endif

}  // namespace

std::uint32_t crc32c(std::string_view bytes, std::uint32_t before) {
#if defined(COHORT_HAS_ISAL)
  if (bytes.size() >= kFoldBytesMin) return ~by_folding(bytes, ~before);
#endif
  return ~short_crc32c(bytes, ~before);
}

}  // namespace cohort
