// SPDX-License-Identifier: Apache-2.0
// A short wait for another thread, before the longer one in which this thread sleeps.
#pragma once

#include <chrono>

#include "cohort/core/spin.h"

namespace cohort::internal {

// Returns whether `is_ready` returned true within about the time in which a thread that sleeps
// would be woken. Gives the core to other threads meanwhile, since there may be more replicas than
// cores.
template <class IsReady>
bool spin_until(const IsReady& is_ready) {
  if (!has_core_each(2)) return is_ready();
  const auto nothing = [] {};
  return spin(2000, is_ready, nothing) ||
         spin_for(std::chrono::microseconds(60), [&] { return spin(100, is_ready, nothing); });
}

}  // namespace cohort::internal
