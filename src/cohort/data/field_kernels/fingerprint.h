// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <farmhash.h>

#include <cstdint>
#include <string_view>

namespace cohort::data {

// FarmHash's Fingerprint64: the same on every machine and in every release.
inline std::uint64_t fingerprint64(std::string_view bytes) {
  return util::Fingerprint64(bytes.data(), bytes.size());
}

}  // namespace cohort::data
