// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/refusal_log.h"

#include <algorithm>

#include "cohort/core/log.h"

namespace cohort::rpc {

void RefusalLog::note(std::string_view who, std::string_view why) {
  std::size_t left_out = 0;
  bool has_line = false;
  {
    const Lock lock(mutex_);
    left_out = end_window();
    if (said_.empty()) window_end_ = clock_.now() + kWindow;
    has_line = is_new(who, why);
    if (!has_line) ++left_out_;
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
  said_.clear();
  return std::exchange(left_out_, 0);
}

bool RefusalLog::is_new(std::string_view who, std::string_view why) {
  if (said_.size() >= kLinesMax) return false;
  const std::string_view host = who.substr(0, who.rfind(':'));
  std::string line = std::string(who) + ": " + std::string(why);
  // A reason may name the caller, too.
  for (std::size_t at = 0; (at = line.find(who, at)) != std::string::npos; at += host.size() + 1)
    line.replace(at, who.size(), host);
  if (std::find(said_.begin(), said_.end(), line) != said_.end()) return false;
  said_.push_back(std::move(line));
  return true;
}

void RefusalLog::say(std::size_t left_out) const {
  if (left_out > 0) log_warn(verb_, " ", left_out, " more within a minute");
}

}  // namespace cohort::rpc
