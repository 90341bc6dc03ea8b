// SPDX-License-Identifier: Apache-2.0
// A short wait for another thread, before the longer one in which this thread sleeps.
#pragma once

#include <chrono>
#include <thread>

namespace cohort::internal {

// Returns whether `is_ready` returned true within about the time in which a thread that sleeps
// would be woken: replicas that run the same step meet, and end, sooner than that. Gives the core
// to other threads meanwhile, since there may be more replicas than cores.
template <class IsReady>
bool spin_until(const IsReady& is_ready) {
  static const bool kHasSeveralCores = std::thread::hardware_concurrency() > 1;
  if (!kHasSeveralCores) return is_ready();
  for (int i = 0; i < 2000; ++i) {
    if (is_ready()) return true;
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(60);
  do {
    for (int i = 0; i < 100; ++i) {
      if (is_ready()) return true;
    }
    std::this_thread::yield();
  } while (std::chrono::steady_clock::now() < end);
  return is_ready();
}

}  // namespace cohort::internal
