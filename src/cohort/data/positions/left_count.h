// SPDX-License-Identifier: Apache-2.0
// Reads the saved positions of take and skip.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/core/bytes.h"

namespace cohort::data {

// The number of elements left to `what` ("take" or "skip"). data_loss if it is negative.
inline std::int64_t read_left(ByteReader& reader, std::string_view what) {
  const std::int64_t left = reader.zigzag();
  if (left < 0) reader.fail("how many elements are left to " + std::string(what));
  return left;
}

}  // namespace cohort::data
