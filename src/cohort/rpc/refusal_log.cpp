// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/detail/refusal_log.h"

#include <utility>

#include "cohort/core/log.h"

namespace cohort::rpc {

void RefusalLog::note(std::string_view who, std::string_view why) {
  std::size_t left_out = 0;
  bool has_line = false;
  {
    const Lock lock(mutex_);
    left_out = end_window();
    if (in_window_ == 0) window_end_ = clock_.now() + kWindow;
    has_line = ++in_window_ <= kLinesMax;
  }
  say(left_out);
  if (has_line) log_warn(verb_, " ", who, ": ", why);
}

void RefusalLog::settle() {
  std::size_t left_out = 0;
  {
    const Lock lock(mutex_);
    left_out = end_window();
  }
  say(left_out);
}

void RefusalLog::finish() {
  std::size_t left_out = 0;
  {
    const Lock lock(mutex_);
    left_out = start_window();
  }
  say(left_out);
}

std::size_t RefusalLog::end_window() { return clock_.now() < window_end_ ? 0 : start_window(); }

std::size_t RefusalLog::start_window() {
  const std::size_t count = std::exchange(in_window_, 0);
  return count > kLinesMax ? count - kLinesMax : 0;
}

void RefusalLog::say(std::size_t left_out) const {
  if (left_out > 0) log_warn(verb_, " ", left_out, " more within a minute");
}

}  // namespace cohort::rpc
