// SPDX-License-Identifier: Apache-2.0
// Counter-based randomness: a number depends on its key and index alone, not on the order of calls;
// and numbers that nobody else has.
#pragma once

#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// A well-mixed 64-bit hash of (seed, stream); used for the seed of closure n of a job.
COHORT_API std::uint64_t mix_seed(std::uint64_t seed, std::uint64_t stream);
COHORT_API std::uint64_t mix_seed(std::uint64_t seed, std::string_view stream);

// Another number at each call and in each process, never 0: a seed if none is given, or the
// incarnation of a process.
COHORT_API std::uint64_t draw_number();

}  // namespace cohort
