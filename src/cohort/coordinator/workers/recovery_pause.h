// SPDX-License-Identifier: Apache-2.0
// The pause before a worker that could not be used is tried again.
#pragma once

#include <algorithm>

#include "cohort/core/clock.h"

namespace cohort::coordinator::internal {

// Each pause is twice as long as the last, up to half a minute. Thread-compatible.
class RecoveryPause {
 public:
  Duration next() {
    const Duration pause = next_;
    next_ = std::min<Duration>(2 * pause, kMax);
    return pause;
  }
  // The worker was usable.
  void reset() { next_ = kMin; }

 private:
  static constexpr Duration kMin = std::chrono::milliseconds(500);
  static constexpr Duration kMax = std::chrono::seconds(30);
  Duration next_ = kMin;
};

}  // namespace cohort::coordinator::internal
