// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/progress_bar.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/core/error.h"
#include "cohort/core/process/launcher_fd.h"
#include "cohort/core/task_progress.h"

namespace cohort {
namespace {

constexpr std::int64_t kWidth = 30;

// 21034 -> "21,034"
std::string grouped(std::int64_t number) {
  std::string text = std::to_string(number);
  for (std::ptrdiff_t at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

// "21,034", and of small rates a digit more: "0.42".
std::string rate_text(double rate) {
  return rate < 9.995 ? fmt::format("{:.2f}", rate) : grouped(std::llround(rate));
}

// "7 s", "3 min 20 s", "5 h 12 min".
std::string time_text(double seconds) {
  const std::int64_t all = std::llround(seconds);
  if (all < 100) return fmt::format("{} s", all);
  if (all < 6000) return fmt::format("{} min {} s", all / 60, all % 60);
  return fmt::format("{} h {} min", all / 3600, all / 60 % 60);
}

std::string value_text(double value) {
  const double size = std::abs(value);
  const bool is_short = !std::isfinite(value) || size == 0 || (size >= 1e-3 && size < 1e6);
  return is_short ? fmt::format("{:.4f}", value) : fmt::format("{:.3e}", value);
}

// Blanks them: a line break or an escape in a name would move the cursor.
std::string without_control_characters(std::string name) {
  for (char& c : name) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return name;
}

// The columns of the terminal of stderr; 0 if it tells none.
std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// The first characters of a text in UTF-8.
std::string first_characters(const std::string& text, std::size_t count) {
  std::size_t characters = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(text[i]) & 0xc0) != 0x80;
    if (begins && characters++ == count) return text.substr(0, i);
  }
  return text;
}

std::map<std::string, double> as_metrics(std::optional<double> loss) {
  return loss ? std::map<std::string, double>{{"loss", *loss}} : std::map<std::string, double>{};
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(options),
      clock_(options.clock == nullptr ? Clock::system() : *options.clock),
      start_(clock_.now()),
      is_visible_(options.is_visible.value_or(isatty(STDERR_FILENO) == 1)),
      launcher_fd_(launcher_fd("COHORT_PROGRESS_FD")) {
  COHORT_CHECK(options.steps > 0, ErrorCode::invalid_argument,
               "[core.progress_bar] expected steps > 0, got ", options.steps);
  COHORT_CHECK(options.first_step >= 0, ErrorCode::invalid_argument,
               "[core.progress_bar] expected first_step >= 0, got ", options.first_step,
               "; give the number of steps that were done before");
}

ProgressBar::~ProgressBar() {
  if (is_visible_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::show(std::int64_t steps_done, std::optional<double> loss) {
  show(steps_done, as_metrics(loss));
}

void ProgressBar::show(std::int64_t steps_done, const std::map<std::string, double>& metrics) {
  tell_launcher(steps_done);
  ProgressMeter::of_process().note_program(steps_done, options_.steps, metrics);
  if (is_visible_) write(line(steps_done, metrics));
}

// The last column stays free, since some terminals go on to the next line after it.
void ProgressBar::write(const std::string& line) const {
  const std::size_t columns = terminal_columns();
  std::fprintf(stderr, "\r\x1b[K%s",
               (columns > 1 ? first_characters(line, columns - 1) : line).c_str());
  std::fflush(stderr);
}

void ProgressBar::tell_launcher(std::int64_t steps_done) {
  const auto percent = static_cast<std::uint8_t>(
      100 * std::clamp<std::int64_t>(steps_done, 0, options_.steps) / options_.steps);
  if (launcher_fd_ < 0 || percent == told_percent_) return;
  told_percent_ = percent;
  [[maybe_unused]] const ssize_t written = ::write(launcher_fd_, &percent, 1);
}

std::string ProgressBar::line(std::int64_t steps_done, std::optional<double> loss) const {
  return line(steps_done, as_metrics(loss));
}

std::string ProgressBar::line(std::int64_t steps_done,
                              const std::map<std::string, double>& metrics) const {
  const std::int64_t done = std::clamp<std::int64_t>(steps_done, 0, options_.steps);
  const auto filled = static_cast<std::size_t>(kWidth * done / options_.steps);
  const double seconds = std::chrono::duration<double>(clock_.now() - start_).count();
  const auto own = static_cast<double>(std::max<std::int64_t>(done - options_.first_step, 0));
  const double rate = seconds > 0 ? own / seconds : 0;
  std::string text = fmt::format("[{}{}] {}/{}  {} {}/s", std::string(filled, '='),
                                 std::string(kWidth - filled, ' '), done, options_.steps,
                                 rate_text(rate * static_cast<double>(options_.examples_per_step)),
                                 options_.examples_per_step == 1 ? "steps" : "examples");
  for (const auto& [name, value] : metrics)
    text += "  " + without_control_characters(name) + " " + value_text(value);
  if (rate > 0)
    text += "  " + time_text(static_cast<double>(options_.steps - done) / rate) + " left";
  return text;
}

}  // namespace cohort
