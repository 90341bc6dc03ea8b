// SPDX-License-Identifier: Apache-2.0
// Which of its random programs a fuzzed test runs.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace cohort::testing {

// The seeds of the programs.
struct FuzzRange {
  std::uint64_t first = 1, count = 1;
};

// `count` programs, or COHORT_FUZZ_PROGRAMS. COHORT_FUZZ_SEED alone is that one program, with
// COHORT_FUZZ_PROGRAMS the first of so many.
inline FuzzRange fuzz_range(std::uint64_t count) {
  const char* const programs = std::getenv("COHORT_FUZZ_PROGRAMS");
  const char* const seed = std::getenv("COHORT_FUZZ_SEED");
  FuzzRange range{.count = seed != nullptr ? 1 : count};
  if (seed != nullptr) range.first = std::strtoull(seed, nullptr, 10);
  if (programs != nullptr) range.count = std::strtoull(programs, nullptr, 10);
  return range;
}

}  // namespace cohort::testing
