// SPDX-License-Identifier: Apache-2.0
// The lock of LibTorch's default CPU generator.
#pragma once

#include <mutex>

#include "cohort/core/export.h"

namespace cohort {

// Hold this lock while you seed the generator and until you restore its state: two threads at once
// would restore each other's state. A thread that holds it may lock it again.
[[nodiscard]] COHORT_API std::unique_lock<std::recursive_mutex> lock_default_generator();

}  // namespace cohort
