// SPDX-License-Identifier: Apache-2.0
// Log lines about callers that were refused, or could not be accepted. Strangers may come by the
// thousand: the first few of a minute have a line each, the rest is counted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc {

// Thread-safe.
class COHORT_API RefusalLog {
 public:
  static constexpr std::size_t kLinesMax = 5;  // a minute

  explicit RefusalLog(Clock& clock = Clock::system(), std::string verb = "refused")
      : clock_(clock), verb_(std::move(verb)) {}
  // `who`: the caller's address.
  void note(std::string_view who, std::string_view why);
  // Says how many were left out, where their minute is over. To be called about once a minute.
  void settle();
  // The same at the end, whether their minute is over or not.
  void finish();

 private:
  static constexpr auto kWindow = std::chrono::minutes(1);
  // How many had no line in a minute that is over.
  std::size_t end_window() COHORT_REQUIRES(mutex_);
  std::size_t start_window() COHORT_REQUIRES(mutex_);
  void say(std::size_t left_out) const;

  Clock& clock_;
  const std::string verb_;
  Mutex mutex_;
  TimePoint window_end_ COHORT_GUARDED_BY(mutex_) = TimePoint::min();
  std::size_t in_window_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::rpc
