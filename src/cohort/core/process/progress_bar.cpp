// SPDX-License-Identifier: Apache-2.0
#include "cohort/core/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "cohort/core/error.h"
#include "cohort/core/process/launcher_fd.h"

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

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options)
    : options_(options),
      clock_(options.clock == nullptr ? Clock::system() : *options.clock),
      start_(clock_.now()),
      is_visible_(options.is_visible.value_or(isatty(STDERR_FILENO) == 1)),
      launcher_fd_(launcher_fd("COHORT_PROGRESS_FD")) {
  COHORT_CHECK(options.steps > 0, ErrorCode::invalid_argument,
               "[core.progress_bar] expected steps > 0, got ", options.steps);
}

ProgressBar::~ProgressBar() {
  if (is_visible_) std::fputs("\r\x1b[K", stderr);
}

void ProgressBar::show(std::int64_t steps_done, std::optional<double> loss) {
  tell_launcher(steps_done);
  if (!is_visible_) return;
  std::fprintf(stderr, "\r\x1b[K%s", line(steps_done, loss).c_str());
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
  const std::int64_t done = std::clamp<std::int64_t>(steps_done, 0, options_.steps);
  const auto filled = static_cast<std::size_t>(kWidth * done / options_.steps);
  const double seconds = std::chrono::duration<double>(clock_.now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  std::string text =
      fmt::format("[{}{}] {}/{}  {} examples/s", std::string(filled, '='),
                  std::string(kWidth - filled, ' '), done, options_.steps,
                  grouped(std::llround(rate * static_cast<double>(options_.examples_per_step))));
  if (loss) text += fmt::format("  loss {:.4f}", *loss);
  if (rate > 0)
    text += fmt::format("  {:.0f} s left", static_cast<double>(options_.steps - done) / rate);
  return text;
}

}  // namespace cohort
