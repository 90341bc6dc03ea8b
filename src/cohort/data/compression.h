// SPDX-License-Identifier: Apache-2.0
// Compression of a whole file.
#pragma once

#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

enum class Compression : std::uint8_t { none, zlib, gzip };
// "", "ZLIB" or "GZIP", as tf names them; anything else is invalid_argument.
COHORT_API Compression parse_compression(std::string_view name);
COHORT_API std::string_view name_of(Compression compression);

}  // namespace cohort
