// SPDX-License-Identifier: Apache-2.0
// The masked form of a CRC-32C, which record files hold.
#pragma once

#include <cstdint>

#include "cohort/core/crc32c.h"

namespace cohort::data {

// A checksum of bytes that hold checksums themselves is weak: files hold this instead.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace cohort::data
