// SPDX-License-Identifier: Apache-2.0
// Which pushes of closures a server has applied: each at most once, however often and late they
// come. A closure has one push a segment.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "cohort/core/mutex.h"

namespace cohort::server {

// A value type.
struct PushId {
  std::uint64_t closure = 0;
  std::uint32_t segment = 0;
  bool operator==(const PushId&) const = default;
};

// Thread-safe.
class AppliedPushes {
 public:
  enum class Verdict : std::uint8_t { apply, applied_before, retired };

  // `apply`: the caller must apply and then call finish() (or forget() when it could not). Waits
  // while another thread applies the same push.
  Verdict begin(PushId push, std::uint64_t low_watermark);
  void finish(PushId push) noexcept;
  void forget(PushId push) noexcept;
  std::size_t remembered() const;

 private:
  enum class State : std::uint8_t { applying, applied };
  struct Hash {
    std::size_t operator()(const PushId& push) const noexcept {
      return std::hash<std::uint64_t>()(push.closure + (std::uint64_t{push.segment} << 48));
    }
  };
  // Forgetting ids one watermark step at a time would make each push pay for the set's size.
  static constexpr std::uint64_t kSweepEvery = 1024;

  mutable Mutex mutex_;
  Condition changed_;
  std::unordered_map<PushId, State, Hash> pushes_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t low_watermark_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t swept_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::server
