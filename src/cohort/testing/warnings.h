// SPDX-License-Identifier: Apache-2.0
// The warnings of this process, for tests of what is logged.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/log.h"
#include "cohort/core/mutex.h"

namespace cohort::testing {

// How often `words` are in `text`.
inline int count_of(std::string_view words, std::string_view text) {
  int count = 0;
  for (auto at = text.find(words); at != std::string_view::npos; at = text.find(words, at + 1))
    ++count;
  return count;
}

// Collects them while it exists. Thread-safe.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view line) {
      const Lock lock(mutex_);
      if (level == LogLevel::warn) text_.append(line).append("\n");
    });
  }
  ~Warnings() { set_log_sink(nullptr); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  std::string text() {
    const Lock lock(mutex_);
    return text_;
  }
  int count(std::string_view words) { return count_of(words, text()); }

 private:
  Mutex mutex_;
  std::string text_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::testing
