// SPDX-License-Identifier: Apache-2.0
// Masks a CRC-32C, as stored in record files.
#pragma once

#include <cstdint>

#include "cohort/core/crc32c.h"

namespace cohort::data {

// The CRC of bytes that contain CRCs is weak. So files store masked CRCs.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
}

}  // namespace cohort::data
