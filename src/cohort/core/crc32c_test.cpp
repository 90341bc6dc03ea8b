// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/crc32c.h"

#include <gtest/gtest.h>

#include <string>

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

}  // namespace
}  // namespace cohort
