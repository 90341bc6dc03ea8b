// SPDX-License-Identifier: Apache-2.0
// Which connections carry checksums of tensors.
#pragma once

#include <cstdint>

namespace cohort {

// Between which tasks tensors carry a checksum; the rest of a frame always does
// (docs/formats/frame.md). If two tasks choose differently, the later value of this list applies.
enum class PayloadChecksums : std::uint8_t {
  between_hosts,  // not between tasks of one host, as far as their addresses say
  never,
  always,
};

}  // namespace cohort
