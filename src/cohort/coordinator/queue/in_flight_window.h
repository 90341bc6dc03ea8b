// SPDX-License-Identifier: Apache-2.0
// How many closures may be on one worker at a time
// (docs/decisions/0004-the-window-follows-the-work.md).
#pragma once

#include <algorithm>
#include <cstddef>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::coordinator::internal {

// The window is small while a closure takes long, so that a loss or a slow worker costs little. It
// is large while closures are shorter than their round trip. It follows the time from one report of
// the worker to the next, while the worker has closures. Used only under its owner's lock.
class COHORT_API InFlightWindow {
 public:
  static constexpr std::size_t kSizeMin = 4;
  static constexpr std::size_t kSizeMax = 128;
  // The size of an automatic window if closures take no longer than their round trip.
  static constexpr std::size_t kSizeOfShort = 32;
  // At this number of unsent closures they are sent at once.
  static constexpr std::size_t kUnsentMax = 16;
  // The window above the least size holds about this much of the worker's time.
  static constexpr Duration kWorkMax = std::chrono::milliseconds(1);

  // `fixed`: a constant size; 0: automatic, with room for twice as many closures as the worker runs
  // at once.
  explicit InFlightWindow(std::size_t fixed = 0, std::size_t at_once = 1)
      : fixed_(fixed), least_(std::max(kSizeMin, 2 * at_once)), size_(least_) {}

  std::size_t size() const { return fixed_ != 0 ? fixed_ : size_; }
  std::size_t in_flight() const { return in_flight_; }
  // Whether the last `unsent` of those in flight may stay unsent until the worker's next report, or
  // until more of them can be sent together. The worker keeps some meanwhile: only one, if closures
  // are so short that a message for each costs more than a worker that is idle until its next
  // message.
  bool can_wait(std::size_t unsent) const {
    const std::size_t reserve = least_ == kSizeMin && size_ >= kSizeOfShort ? 1 : least_;
    return size_ > least_ && unsent < kUnsentMax && in_flight_ >= unsent + reserve;
  }

  void sent(TimePoint now);
  // This many closures were reported together.
  void ended(std::size_t count, TimePoint now);
  // The worker was lost: its new process is measured from the start.
  void reset() { *this = InFlightWindow(fixed_, least_ / 2); }

 private:
  void adapt();

  std::size_t fixed_;
  std::size_t least_;
  std::size_t size_;  // the automatic size, also if it is fixed
  std::size_t in_flight_ = 0;
  TimePoint since_{};  // the last report, or the first closure sent to an idle worker
  // Since the last adapt().
  std::size_t ended_ = 0;
  Duration busy_{};
};

}  // namespace cohort::coordinator::internal
