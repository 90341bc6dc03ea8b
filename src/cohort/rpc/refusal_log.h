// SPDX-License-Identifier: Apache-2.0
// Log lines about callers that were refused or could not be accepted. There may be thousands of
// them, so in each minute a host and a reason have one line together, a few lines are written, and
// the rest are counted.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::rpc {

// Thread-safe.
class COHORT_API RefusalLog {
 public:
  static constexpr std::size_t kLinesMax = 5;  // per minute

  explicit RefusalLog(Clock& clock = Clock::system(), std::string verb = "refused")
      : clock_(clock), verb_(std::move(verb)) {}
  // `who`: the caller's address, whose port differs for each of its connections.
  void note(std::string_view who, std::string_view why);
  // If their minute is over, logs how many were left out. Call it about once a minute.
  void settle();
  // Logs how many were left out. Call it at the end.
  void finish();

 private:
  static constexpr auto kWindow = std::chrono::minutes(1);
  // Both start a new count and return how many got no line; end_window() only if the minute is
  // over.
  std::size_t end_window() COHORT_REQUIRES(mutex_);
  std::size_t start_window() COHORT_REQUIRES(mutex_);
  bool is_new(std::string_view who, std::string_view why) COHORT_REQUIRES(mutex_);
  void say(std::size_t left_out) const;

  Clock& clock_;
  const std::string verb_;
  Mutex mutex_;
  TimePoint window_end_ COHORT_GUARDED_BY(mutex_) = TimePoint::min();
  std::vector<std::string> said_ COHORT_GUARDED_BY(mutex_);  // in this minute
  std::size_t left_out_ COHORT_GUARDED_BY(mutex_) = 0;
};

}  // namespace cohort::rpc
