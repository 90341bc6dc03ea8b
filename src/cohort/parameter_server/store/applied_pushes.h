// SPDX-License-Identifier: Apache-2.0
// The pushes of closures that a server has applied. Each is applied at most once, however often and
// late it arrives. A closure has one push for each segment.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "cohort/core/mutex.h"

namespace cohort::parameter_server {

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

  // If the result is `apply`, the caller must apply the push and then call finish(), or forget() if
  // it could not apply it. Waits while another thread applies the same push.
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
  // The watermark must grow by this number before old ids are removed, since a removal iterates
  // over the whole set.
  static constexpr std::uint64_t kSweepEvery = 1024;

  mutable Mutex mutex_;
  Condition changed_;
  std::unordered_map<PushId, State, Hash> pushes_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t low_watermark_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t swept_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::parameter_server
