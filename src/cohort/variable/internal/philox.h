// SPDX-License-Identifier: Apache-2.0
// Philox4x32-10, a counter-based random generator: four words that depend only on a counter and a
// key (Salmon, Moraes, Dror and Shaw: Parallel random numbers: as easy as 1, 2, 3; 2011).
#pragma once

#include <array>
#include <cstdint>

namespace cohort::variable {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

// Thread-safe, since it has no state.
constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  constexpr std::uint64_t kFactor0 = 0xD2511F53;
  constexpr std::uint64_t kFactor1 = 0xCD9E8D57;
  constexpr std::uint32_t kStep0 = 0x9E3779B9;  // the golden ratio
  constexpr std::uint32_t kStep1 = 0xBB67AE85;  // the square root of 3, less 1
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = kFactor0 * counter[0];
    const std::uint64_t product1 = kFactor1 * counter[2];
    counter = {static_cast<std::uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(product1),
               static_cast<std::uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key = {key[0] + kStep0, key[1] + kStep1};
  }
  return counter;
}

}  // namespace cohort::variable
