// SPDX-License-Identifier: Apache-2.0
// The variables of a metric.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/metrics/row_filter.h"
#include "cohort/variable/variable.h"

namespace cohort {
class Strategy;
}

namespace cohort::metrics {

// Thread-safe, as variables are.
class MetricState {
 public:
  // Makes the variables in the current strategy. `zeros`: the sums of no row.
  MetricState(std::string name, const at::Tensor& zeros);

  const std::string& name() const { return name_; }
  // Adds the sums of the rows that count, and their number.
  void add(const RowFilter& rows, const at::Tensor& sums) const;
  // Adds the weighted sum of a number of each row, [rows], and the sum of the weights; for a
  // metric of two sums.
  void add_mean(const RowFilter& rows, const at::Tensor& of_rows) const;

  struct Totals {
    at::Tensor sums;  // on the CPU
    std::int64_t rows = 0;
  };
  // Throws failed_precondition in a step; invalid_argument if bad rows were left out.
  Totals totals(std::string_view call) const;
  // The quotient of add_mean()'s sums. Also throws failed_precondition without a row.
  double mean() const;
  // Throws failed_precondition if no row was counted.
  void check_has_rows(bool has_rows) const;
  void reset() const;
  std::vector<Variable> variables() const { return {rows_, bad_rows_, sums_}; }

 private:
  Variable make(const char* part, const at::Tensor& zeros, const Variable* beside) const;
  void check_outside_step(std::string_view call) const;

  const std::string name_;
  const Strategy* const strategy_;  // only to compare: it may be destroyed; nullptr: none
  // A number, which no strategy divides; so the server that has it has the others, too, and applies
  // what a closure adds to all of them at once or not at all.
  const Variable rows_;
  const Variable bad_rows_;
  const Variable sums_;
};

}  // namespace cohort::metrics
