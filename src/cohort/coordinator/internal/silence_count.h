// SPDX-License-Identifier: Apache-2.0
// Counts how many health calls in a row a worker has left unanswered.
#pragma once

#include <cstdint>

namespace cohort::coordinator::internal {

// Thread-compatible.
class SilenceCount {
 public:
  // Adds a call over the connection of this epoch; a new connection starts at zero. Returns true if
  // the limit is reached, and then starts again at zero.
  bool add(std::uint64_t epoch, bool is_silent) {
    if (epoch != epoch_ || !is_silent) silences_ = 0;
    epoch_ = epoch;
    if (!is_silent || ++silences_ < kMax) return false;
    silences_ = 0;
    return true;
  }

 private:
  static constexpr int kMax = 2;
  std::uint64_t epoch_ = 0;
  int silences_ = 0;
};

}  // namespace cohort::coordinator::internal
