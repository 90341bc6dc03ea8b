// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/log.h"

#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>

#include "cohort/core/mutex.h"
#include "cohort/core/text/one_line.h"

namespace cohort {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warn", "error", "off"};

// The levels of LogLevel, in its order.
constexpr std::array kSpdlogLevels = {spdlog::level::debug, spdlog::level::info,
                                      spdlog::level::warn, spdlog::level::err, spdlog::level::off};

LogLevel level_from(spdlog::level::level_enum level) {
  const auto found = std::find(kSpdlogLevels.begin(), kSpdlogLevels.end(), level);
  return static_cast<LogLevel>(found - kSpdlogLevels.begin());
}

// Formats under the sink's lock and hands the line to the user's function or to stderr.
class LineSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void redirect(std::function<void(LogLevel, std::string_view)> taker) {
    const std::lock_guard lock(mutex_);
    taker_ = std::move(taker);
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (taker_) {
      taker_(level_from(message.level), std::string_view(line.data(), line.size()));
      return;
    }
    line.push_back('\n');
    // One write a line, so that lines of several processes on one terminal stay whole.
    std::fwrite(line.data(), 1, line.size(), stderr);
    std::fflush(stderr);
  }
  void flush_() override { std::fflush(stderr); }

  std::function<void(LogLevel, std::string_view)> taker_;
};

struct Log {
  Log() : logger("cohort", sink) {
    logger.set_level(spdlog::level::trace);
    sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
        "%Y-%m-%d %H:%M:%S.%e %l %v", spdlog::pattern_time_type::local, ""));
    read_environment();
  }

  void read_environment() {
    const char* text = std::getenv("COHORT_LOG_LEVEL");
    if (text == nullptr || *text == '\0') return;
    for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
      if (kLevelNames[i] != text) continue;
      level = static_cast<LogLevel>(i);
      return;
    }
    logger.log(spdlog::level::warn,
               std::string("[core.log] expected COHORT_LOG_LEVEL to be debug, info, warn, error or "
                           "off, got \"") +
                   text + "\"; using warn");
  }

  std::shared_ptr<LineSink> sink = std::make_shared<LineSink>();
  spdlog::logger logger;
  std::atomic<LogLevel> level{LogLevel::warn};
  Mutex task_mutex;
  std::string task COHORT_GUARDED_BY(task_mutex);
};

// Never destroyed: threads may log while the process ends.
Log& log() {
  static Log* const instance = new Log;
  return *instance;
}

void write_line(LogLevel level, const std::string& text) {
  std::string line;
  {
    const Lock lock(log().task_mutex);
    if (!log().task.empty()) line = log().task + ": ";
  }
  line += internal::one_line(text);
  log().logger.log(kSpdlogLevels.at(static_cast<std::size_t>(level)), line);
}

}  // namespace

void set_log_task(std::string task) {
  const Lock lock(log().task_mutex);
  log().task = std::move(task);
}

void set_log_level(LogLevel level) { log().level = level; }

bool is_logged(LogLevel level) { return level != LogLevel::off && level >= log().level; }

void set_log_sink(std::function<void(LogLevel, std::string_view)> sink) {
  log().sink->redirect(std::move(sink));
}

void log_line(LogLevel level, const std::string& text) {
  if (is_logged(level)) write_line(level, text);
}

void log_output(const std::string& text) {
  if (log().level != LogLevel::off) write_line(LogLevel::info, text);
}

}  // namespace cohort
