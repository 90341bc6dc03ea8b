// SPDX-License-Identifier: Apache-2.0
// A progress line on the terminal: steps, rate, loss, remaining time. It shows nothing if stderr is
// not a terminal. Under `cohort launch` it also writes each new percentage, a byte of 0 to 100, to
// the file descriptor COHORT_PROGRESS_FD.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

struct ProgressBarOptions {
  std::int64_t steps = 0;
  std::int64_t examples_per_step = 1;
  std::optional<bool> is_visible = {};  // nullopt: if stderr is a terminal
  Clock* clock = nullptr;               // nullptr: the machine's
};

// Used from one thread.
class COHORT_API ProgressBar {
 public:
  explicit ProgressBar(ProgressBarOptions options);
  // Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(std::int64_t steps_done, std::optional<double> loss = std::nullopt);
  // "[=====     ] 468/937  21,034 examples/s  loss 0.312  1 s left"
  std::string line(std::int64_t steps_done, std::optional<double> loss) const;

 private:
  void tell_launcher(std::int64_t steps_done);

  ProgressBarOptions options_;
  Clock& clock_;
  TimePoint start_;
  bool is_visible_;
  int launcher_fd_;
  std::optional<std::uint8_t> told_percent_;
};

}  // namespace cohort
