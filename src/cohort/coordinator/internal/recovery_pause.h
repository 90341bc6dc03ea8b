// SPDX-License-Identifier: Apache-2.0
// How long a worker that could not be used is left alone before it is tried again.
#pragma once

#include <algorithm>

#include "cohort/core/clock.h"

namespace cohort::coordinator::internal {

// Twice as long each time, up to half a minute. Thread-compatible.
class RecoveryPause {
 public:
  Duration next() {
    const Duration pause = next_;
    next_ = std::min<Duration>(2 * pause, kMax);
    return pause;
  }
  // It was usable again.
  void reset() { next_ = kMin; }

 private:
  static constexpr Duration kMin = std::chrono::milliseconds(500);
  static constexpr Duration kMax = std::chrono::seconds(30);
  Duration next_ = kMin;
};

}  // namespace cohort::coordinator::internal
