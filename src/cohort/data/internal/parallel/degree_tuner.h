// SPDX-License-Identifier: Apache-2.0
// How many calls at a time give the most results (kAutotune).
#pragma once

#include <cstddef>

#include "cohort/core/clock.h"

namespace cohort::data {

// Starts with one call and adds some for as long as the rate of results rises; falls back to the
// best degree and looks again after a while. Used only under its owner's lock.
class DegreeTuner {
 public:
  explicit DegreeTuner(std::size_t degree_max) : degree_max_(degree_max) {}

  std::size_t degree() const { return degree_; }
  // A result was handed on; whoever took it had to wait for it or not.
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
