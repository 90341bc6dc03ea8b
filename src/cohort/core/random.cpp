// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/random.h"

#include <algorithm>
#include <random>

namespace cohort {
namespace {

// The finaliser of splitmix64: every input bit affects every output bit.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

constexpr std::uint64_t kStep = 0x9e3779b97f4a7c15ULL;

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t stream) {
  // Mixing between the two keeps (1, 2) and (2, 1), and neighbouring streams, apart.
  return mix(mix(seed + kStep) + (stream + 1) * kStep);
}

std::uint64_t mix_seed(std::uint64_t seed, std::string_view stream) {
  return mix_seed(seed, fnv1a(stream));
}

std::uint64_t draw_number() {
  std::random_device device;
  const std::uint64_t number = (std::uint64_t{device()} << 32) | device();
  return std::max<std::uint64_t>(number, 1);
}

}  // namespace cohort
