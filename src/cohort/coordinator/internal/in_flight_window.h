// SPDX-License-Identifier: Apache-2.0
// How many closures may be on one worker at a time
// (docs/decisions/0004-the-window-follows-the-work.md).
#pragma once

#include <cstddef>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort::coordinator::internal {

// Few while a closure takes long, so that a loss or a slow worker costs little; many while closures
// are so short that their way there and back takes longer than they do. It follows the time from
// one report of the worker to the next, while it has work. Used only under its owner's lock.
class COHORT_API InFlightWindow {
 public:
  static constexpr std::size_t kSizeMin = 4;
  static constexpr std::size_t kSizeMax = 128;
  // Of an automatic window, where closures take no longer than their way to the worker and back.
  static constexpr std::size_t kSizeOfShort = 32;
  // More of them leave at once.
  static constexpr std::size_t kUnsentMax = 16;
  // Of the worker's time that waits on it, above the least size.
  static constexpr Duration kWorkMax = std::chrono::milliseconds(1);

  // `fixed`: the size for ever; 0: automatic.
  explicit InFlightWindow(std::size_t fixed = 0) : fixed_(fixed) {}

  std::size_t size() const { return fixed_ != 0 ? fixed_ : size_; }
  std::size_t in_flight() const { return in_flight_; }
  // Whether the last `unsent` of those in flight may stay unsent until the worker's next report, or
  // until more of them can leave together. The worker keeps some meanwhile: one, where closures are
  // so short that a message for each costs more than a worker that waits for its next one.
  bool can_wait(std::size_t unsent) const {
    const std::size_t reserve = size_ >= kSizeOfShort ? 1 : kSizeMin;
    return size_ > kSizeMin && unsent < kUnsentMax && in_flight_ >= unsent + reserve;
  }

  void sent(TimePoint now);
  // Reported together.
  void ended(std::size_t count, TimePoint now);
  // The worker was lost: it starts again as an unknown one.
  void reset() { *this = InFlightWindow(fixed_); }

 private:
  void adapt();

  std::size_t fixed_;
  std::size_t size_ = kSizeMin;  // as if it were automatic
  std::size_t in_flight_ = 0;
  TimePoint since_{};  // the last report, or the first closure after the worker had none
  // Since the size was last looked at.
  std::size_t ended_ = 0;
  Duration busy_{};
};

}  // namespace cohort::coordinator::internal
