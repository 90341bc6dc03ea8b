// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/applied_closures.h"

#include <algorithm>

namespace cohort::server {

AppliedClosures::Verdict AppliedClosures::begin(std::uint64_t closure_id,
                                                std::uint64_t low_watermark) {
  const Lock lock(mutex_);
  low_watermark_ = std::max(low_watermark_, low_watermark);
  if (low_watermark_ >= swept_ + kSweepEvery) {
    std::erase_if(applied_, [this](std::uint64_t id)
                                COHORT_NO_THREAD_SAFETY_ANALYSIS { return id < low_watermark_; });
    swept_ = low_watermark_;
  }
  changed_.wait(mutex_, Deadline(),
                [&]() COHORT_NO_THREAD_SAFETY_ANALYSIS { return !applying_.contains(closure_id); });
  if (applied_.contains(closure_id)) return Verdict::applied_before;
  if (closure_id < low_watermark_) return Verdict::retired;
  applying_.insert(closure_id);
  return Verdict::apply;
}

void AppliedClosures::finish(std::uint64_t closure_id) {
  {
    const Lock lock(mutex_);
    applying_.erase(closure_id);
    applied_.insert(closure_id);
  }
  changed_.notify_all();
}

void AppliedClosures::forget(std::uint64_t closure_id) {
  {
    const Lock lock(mutex_);
    applying_.erase(closure_id);
  }
  changed_.notify_all();
}

std::size_t AppliedClosures::remembered() const {
  const Lock lock(mutex_);
  return applied_.size();
}

}  // namespace cohort::server
