// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace cohort::data {

// FarmHash's Fingerprint64: the same on every machine and in every release.
std::uint64_t fingerprint64(std::string_view bytes);

}  // namespace cohort::data
