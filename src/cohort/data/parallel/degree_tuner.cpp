// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/parallel/degree_tuner.h"

#include <algorithm>

namespace cohort::data {
namespace {

// The minimum length of a window, in results and in time, so that rates can be compared.
constexpr std::size_t kWindowResults = 8;
constexpr std::chrono::milliseconds kWindowTime(5);
// A smaller gain is treated as noise.
constexpr double kGain = 1.05;
// After this many windows it searches again, since the load may have changed.
constexpr std::size_t kSettledWindows = 100;

}  // namespace

void DegreeTuner::note_result(TimePoint now, bool had_to_wait) {
  if (results_ == 0 && waits_ == 0 && window_begin_ == TimePoint()) {
    window_begin_ = now;
    return;
  }
  ++results_;
  if (had_to_wait) ++waits_;
  const Duration time = now - window_begin_;
  if (results_ < kWindowResults || time < kWindowTime) return;
  // If the consumer rarely waits, the calls do not limit the rate.
  const bool calls_limit = 4 * waits_ >= results_;
  const double rate = static_cast<double>(results_) / std::chrono::duration<double>(time).count();
  window_begin_ = now;
  results_ = 0;
  waits_ = 0;
  if (calls_limit) end_window(rate);
}

void DegreeTuner::end_window(double rate) {
  if (is_settled_) {
    if (++windows_settled_ < kSettledWindows) return;
    is_settled_ = false;
    windows_settled_ = 0;
    best_rate_ = 0;
  }
  if (rate > best_rate_ * kGain) {
    best_rate_ = rate;
    best_degree_ = degree_;
    degree_ = std::min(degree_max_, degree_ + std::max<std::size_t>(1, degree_ / 2));
    is_settled_ = degree_ == best_degree_;
  } else {
    degree_ = best_degree_;
    is_settled_ = true;
  }
}

}  // namespace cohort::data
