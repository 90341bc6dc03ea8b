// SPDX-License-Identifier: Apache-2.0
// What take and skip keep of their position.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cohort/core/bytes.h"

namespace cohort::data {

// How many elements are left to `what`, "take" or "skip". A data_loss error where it is negative.
inline std::int64_t read_left(ByteReader& reader, std::string_view what) {
  const std::int64_t left = reader.zigzag();
  if (left < 0) reader.fail("how many elements are left to " + std::string(what));
  return left;
}

}  // namespace cohort::data
