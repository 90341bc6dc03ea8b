// SPDX-License-Identifier: Apache-2.0
// Turns at LibTorch's default CPU generator.
#pragma once

#include <mutex>

#include "cohort/core/export.h"

namespace cohort {

// Held by whoever seeds the generator for a while and puts its state back: two at once would put
// back each other's. A thread may take it again.
[[nodiscard]] COHORT_API std::unique_lock<std::recursive_mutex> lock_default_generator();

}  // namespace cohort
