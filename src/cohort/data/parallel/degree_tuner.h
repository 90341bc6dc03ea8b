// SPDX-License-Identifier: Apache-2.0
// Finds the number of parallel calls with the highest rate of results (kAutotune).
#pragma once

#include <cstddef>

#include "cohort/core/clock.h"

namespace cohort::data {

// Starts with one call and adds calls as long as the rate of results rises. Then it returns to the
// best number, and searches again after a while. Used only under its owner's lock.
class DegreeTuner {
 public:
  explicit DegreeTuner(std::size_t degree_max) : degree_max_(degree_max) {}

  std::size_t degree() const { return degree_; }
  // Call after each result; `had_to_wait` tells whether the consumer had to wait for it.
  void note_result(TimePoint now, bool had_to_wait);

 private:
  void end_window(double rate);

  std::size_t degree_max_;
  std::size_t degree_ = 1;
  std::size_t best_degree_ = 1;
  double best_rate_ = 0;
  bool is_settled_ = false;
  std::size_t windows_settled_ = 0;
  TimePoint window_begin_{};
  std::size_t results_ = 0;
  std::size_t waits_ = 0;
};

}  // namespace cohort::data
