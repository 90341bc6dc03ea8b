// SPDX-License-Identifier: Apache-2.0
// A progress line on the terminal: steps, rate, metrics, remaining time (keras's ProgbarLogger,
// tqdm). It shows nothing if stderr is not a terminal. Under `cohort launch` it also writes each
// new percentage, a byte of 0 to 100, to the file descriptor COHORT_PROGRESS_FD. `cohort status`
// shows what a worker of MultiWorkerMirroredStrategy has given to show() last.
//
//   ProgressBar bar({.steps = steps, .examples_per_step = 64, .first_step = step});
//   for (; step < steps; ++step) {
//     const double loss = train();
//     bar.show(step + 1, {{"loss", loss}, {"val_accuracy", accuracy}});
//   }
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"

namespace cohort {

struct ProgressBarOptions {
  std::int64_t steps = 0;               // of the whole training, > 0
  std::int64_t examples_per_step = 1;   // the rate is in examples; 1: in steps
  std::optional<bool> is_visible = {};  // nullopt: if stderr is a terminal
  Clock* clock = nullptr;               // nullptr: the machine's
  // So many steps were done before this run, as where a training was resumed; not negative. The
  // rate and the remaining time count only steps of this run.
  std::int64_t first_step = 0;
};

// Used from one thread.
class COHORT_API ProgressBar {
 public:
  // Throws invalid_argument for numbers that are out of range.
  explicit ProgressBar(ProgressBarOptions options);
  // Clears the line.
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `steps_done` counts all steps of the training, with those before first_step.
  void show(std::int64_t steps_done, std::optional<double> loss = std::nullopt);
  // The same with any numbers by name, such as MetricValues (early_stopping.h), which the program
  // has: no tensor is read for it. They are shown in the order of their names. A line that is
  // longer than the terminal's is cut.
  void show(std::int64_t steps_done, const std::map<std::string, double>& metrics);
  // "[=====     ] 468/937  21,034 examples/s  loss 0.3120  1 s left"
  std::string line(std::int64_t steps_done, std::optional<double> loss) const;
  std::string line(std::int64_t steps_done, const std::map<std::string, double>& metrics) const;

 private:
  void write(const std::string& line) const;
  void tell_launcher(std::int64_t steps_done);

  ProgressBarOptions options_;
  Clock& clock_;
  TimePoint start_;
  bool is_visible_;
  int launcher_fd_;
  std::optional<std::uint8_t> told_percent_;
};

}  // namespace cohort
