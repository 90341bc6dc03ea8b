// SPDX-License-Identifier: Apache-2.0
// When to remove what has ended from a container of weak pointers: rarely enough that this costs a
// fixed number of looks for each entry that was added, and often enough that at most half of the
// entries have ended for long.
#pragma once

#include <algorithm>
#include <cstddef>

namespace cohort::internal {

// For one container. Thread-compatible.
class AmortizedSweep {
 public:
  // Call it before each addition. Removes the entries for which `has_ended` is true, if the
  // container has grown to twice its size since the last time.
  template <class Container, class HasEnded>
  void operator()(Container& entries, const HasEnded& has_ended) {
    if (entries.size() < limit_) return;
    std::erase_if(entries, has_ended);
    limit_ = std::max(kSizeMin, 2 * entries.size());
  }

 private:
  static constexpr std::size_t kSizeMin = 8;
  std::size_t limit_ = kSizeMin;
};

}  // namespace cohort::internal
