// SPDX-License-Identifier: Apache-2.0
// Writes one line per event to stderr, with level, time and task. Thread-safe.
//
//   log_info("connected to ", task, " over ", backend);
// The environment variable COHORT_LOG_LEVEL sets the level: debug, info, warn (default), error,
// off.
#pragma once

#include <cstdint>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

enum class LogLevel : std::uint8_t { debug, info, warn, error, off };

// Sets the prefix of every line of this process, for example "worker:1"; empty: none.
COHORT_API void set_log_task(std::string task);
COHORT_API void set_log_level(LogLevel level);
COHORT_API bool is_logged(LogLevel level);
// `sink` receives the lines instead of stderr; nullptr restores stderr.
COHORT_API void set_log_sink(std::function<void(LogLevel, std::string_view line)> sink);
COHORT_API void log_line(LogLevel level, const std::string& text);
// Logs output that the user's program requested, at every level except off.
COHORT_API void log_output(const std::string& text);

namespace internal {
template <class... Parts>
void log_parts(LogLevel level, const Parts&... parts) {
  if (!is_logged(level)) return;
  std::ostringstream text;
  (text << ... << parts);
  log_line(level, text.str());
}
}  // namespace internal

template <class... Parts>
void log_debug(const Parts&... parts) {
  internal::log_parts(LogLevel::debug, parts...);
}
template <class... Parts>
void log_info(const Parts&... parts) {
  internal::log_parts(LogLevel::info, parts...);
}
template <class... Parts>
void log_warn(const Parts&... parts) {
  internal::log_parts(LogLevel::warn, parts...);
}
template <class... Parts>
void log_error(const Parts&... parts) {
  internal::log_parts(LogLevel::error, parts...);
}

}  // namespace cohort
