// SPDX-License-Identifier: Apache-2.0
// Which closures' pushes a server has applied: each at most once, however often and late they come.
#pragma once

#include <cstdint>
#include <unordered_set>

#include "cohort/core/mutex.h"

namespace cohort::server {

// Thread-safe.
class AppliedClosures {
 public:
  enum class Verdict : std::uint8_t { apply, applied_before, retired };

  // `apply`: the caller must apply and then call finish() (or forget() when it could not). Waits
  // while another thread applies a push of the same closure.
  Verdict begin(std::uint64_t closure_id, std::uint64_t low_watermark);
  void finish(std::uint64_t closure_id);
  void forget(std::uint64_t closure_id);
  std::size_t remembered() const;

 private:
  // Forgetting ids one watermark step at a time would make each push pay for the set's size.
  static constexpr std::uint64_t kSweepEvery = 1024;

  mutable Mutex mutex_;
  Condition changed_;
  std::unordered_set<std::uint64_t> applied_ COHORT_GUARDED_BY(mutex_);
  std::unordered_set<std::uint64_t> applying_ COHORT_GUARDED_BY(mutex_);
  std::uint64_t low_watermark_ COHORT_GUARDED_BY(mutex_) = 0;
  std::uint64_t swept_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::server
