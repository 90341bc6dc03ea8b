// SPDX-License-Identifier: Apache-2.0
// CRC-32C (Castagnoli), computed by the processor's instructions where it has them
// (docs/decisions/0006-crc32c-by-length.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// The checksum of data that consists of bytes with the checksum `before`, followed by `bytes`.
COHORT_API std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);
inline std::uint32_t crc32c(std::span<const std::byte> bytes, std::uint32_t before = 0) {
  return crc32c(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
                before);
}

}  // namespace cohort
