// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), and the masked form that record files hold
// (docs/decisions/0006-crc32c-by-length.md).
#pragma once

#include <cstdint>
#include <string_view>

namespace cohort::data {

std::uint32_t crc32c(std::string_view bytes);

// A checksum of bytes that hold checksums themselves is weak: files hold this instead.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace cohort::data
