// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace cohort {
namespace {

TEST(Crc32c, IsTheSameAsBitByBit) {
  std::string bytes;
  for (int i = 0; i < 1100; ++i) bytes += static_cast<char>(i * 7 + i / 256);
  for (std::size_t length = 0; length <= bytes.size(); ++length) {
    std::uint32_t crc = ~0U;
    for (std::size_t i = 0; i < length; ++i) {
      crc ^= static_cast<unsigned char>(bytes[i]);
      for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78U : 0);
    }
    ASSERT_EQ(crc32c(std::string_view(bytes).substr(0, length)), ~crc) << length;
  }
}

TEST(Crc32c, IsThatOfOthers) {
  EXPECT_EQ(crc32c("a"), 0xc1d04330U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
}

TEST(Crc32c, GoesOnWhereItEnded) {
  std::string bytes(3000, 0);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  const std::string_view all = bytes;
  for (const std::size_t cut : {0, 1, 7, 8, 100, 255, 256, 257, 1024, 2999, 3000}) {
    EXPECT_EQ(crc32c(all.substr(cut), crc32c(all.substr(0, cut))), crc32c(all)) << cut;
  }
}

#if defined(__x86_64__)
// The register parts in use (XINUSE). Bit 2 is set when the upper halves of ymm0 to ymm15 are.
__attribute__((target("xsave"))) unsigned long long parts_in_use() { return _xgetbv(1); }
__attribute__((target("avx"))) void clean_registers() { _mm256_zeroupper(); }

bool can_tell_parts_in_use() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  constexpr unsigned int kXgetbvWithOne = 1U << 2;
  return __builtin_cpu_supports("avx") && __get_cpuid_count(13, 1, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kXgetbvWithOne) != 0;
}

// crc32c() left them in use, and every later SSE instruction of the thread was slow.
TEST(Crc32c, LeavesTheUpperHalvesOfTheRegistersClean) {
  if (!can_tell_parts_in_use()) GTEST_SKIP() << "this processor does not tell";
  constexpr unsigned long long kUpperHalves = 1U << 2;
  const std::string bytes(5000, 'x');
  for (const std::size_t length : {16U, 255U, 256U, 300U, 1024U, 5000U}) {
    clean_registers();
    if ((parts_in_use() & kUpperHalves) != 0) GTEST_SKIP() << "this processor tells no difference";
    crc32c(std::string_view(bytes).substr(0, length));
    EXPECT_EQ(parts_in_use() & kUpperHalves, 0U) << length;
  }
}
#endif

}  // namespace
}  // namespace cohort
