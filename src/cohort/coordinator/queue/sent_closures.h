// SPDX-License-Identifier: Apache-2.0
// Which closures were sent to a worker over its current connection.
#pragma once

#include <bitset>
#include <cstdint>

namespace cohort::coordinator::internal {

// Remembers the newest ids, one bit each; ids mostly grow. Used only under its owner's lock.
class SentClosures {
 public:
  void add(std::uint64_t closure) {
    if (closure > newest_) {
      forget_before(closure);
      newest_ = closure;
    } else if (newest_ - closure >= kRemembered) {
      return;
    }
    sent_[closure % kRemembered] = true;
  }
  // False only if the closure was not sent; true also for ids that are too old to be remembered.
  bool may_have(std::uint64_t closure) const {
    if (closure > newest_) return false;
    return newest_ - closure >= kRemembered || sent_[closure % kRemembered];
  }
  // The worker has a new connection.
  void clear() { *this = {}; }

 private:
  static constexpr std::uint64_t kRemembered = std::uint64_t{1} << 14;

  // Clears the bits of the ids after the newest up to this one, which belonged to older ids.
  void forget_before(std::uint64_t closure) {
    if (closure - newest_ >= kRemembered) {
      sent_.reset();
      return;
    }
    for (std::uint64_t id = newest_ + 1; id <= closure; ++id) sent_[id % kRemembered] = false;
  }

  std::uint64_t newest_ = 0;
  std::bitset<kRemembered> sent_;
};

}  // namespace cohort::coordinator::internal
