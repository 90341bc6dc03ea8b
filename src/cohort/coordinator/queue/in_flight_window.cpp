// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/queue/in_flight_window.h"

#include <algorithm>

namespace cohort::coordinator::internal {

void InFlightWindow::sent(TimePoint now) {
  if (in_flight_++ == 0) since_ = now;
}

void InFlightWindow::ended(std::size_t count, TimePoint now) {
  in_flight_ -= std::min(count, in_flight_);
  ended_ += count;
  busy_ += std::max(Duration::zero(), now - since_);
  since_ = now;
  // One report is not enough to measure: it may hold one closure or many.
  if (ended_ >= size_ / 2 || busy_ >= kWorkMax) adapt();
}

// At most doubles or halves the size, so that one interruption of the machine changes little. While
// the window is too small, the measured time includes the round trip, which makes the window
// larger.
void InFlightWindow::adapt() {
  if (ended_ == 0) return;
  const auto each = std::max(Duration(1), busy_ / static_cast<Duration::rep>(ended_));
  const auto wanted = static_cast<std::size_t>(kWorkMax / each);
  size_ = std::clamp(std::clamp(wanted, size_ / 2, size_ * 2), least_, std::max(least_, kSizeMax));
  ended_ = 0;
  busy_ = Duration::zero();
}

}  // namespace cohort::coordinator::internal
