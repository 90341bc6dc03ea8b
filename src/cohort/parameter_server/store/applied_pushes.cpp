// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/store/applied_pushes.h"

#include <algorithm>

namespace cohort::parameter_server {

AppliedPushes::Verdict AppliedPushes::begin(PushId push, std::uint64_t low_watermark) {
  const Lock lock(mutex_);
  low_watermark_ = std::max(low_watermark_, low_watermark);
  if (low_watermark_ >= swept_ + kSweepEvery) {
    std::erase_if(pushes_, [this](const auto& entry) COHORT_NO_THREAD_SAFETY_ANALYSIS {
      return entry.first.closure < low_watermark_ && entry.second == State::applied;
    });
    swept_ = low_watermark_;
  }
  changed_.wait(mutex_, Deadline(), [&]() COHORT_REQUIRES(mutex_) {
    const auto found = pushes_.find(push);
    return found == pushes_.end() || found->second == State::applied;
  });
  if (pushes_.contains(push)) return Verdict::applied_before;
  if (push.closure < low_watermark_) return Verdict::retired;
  // This allocates memory, so it comes before the push is applied.
  pushes_.emplace(push, State::applying);
  return Verdict::apply;
}

void AppliedPushes::finish(PushId push) noexcept {
  {
    const Lock lock(mutex_);
    pushes_.find(push)->second = State::applied;
  }
  changed_.notify_all();
}

void AppliedPushes::forget(PushId push) noexcept {
  {
    const Lock lock(mutex_);
    pushes_.erase(push);
  }
  changed_.notify_all();
}

std::size_t AppliedPushes::remembered() const {
  const Lock lock(mutex_);
  return pushes_.size();
}

}  // namespace cohort::parameter_server
