// SPDX-License-Identifier: Apache-2.0
// The rows of one update of a metric: which of them count, and with which weights.
//
//   RowFilter rows("accuracy", predictions, weights);
//   rows.require(~largest.isnan(), "predictions without NaN", largest);
//   const at::Tensor sum = rows.weights().mul(rows.masked(values)).sum();
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cohort/metrics/metrics.h"

namespace cohort::metrics {

// Throws invalid_argument, naming the metric, if a tensor of the batch is missing.
void check_is_given(const std::string& metric, const LabeledRows& batch);
// [rows, 1] as [rows]; others unchanged.
at::Tensor as_rows(const at::Tensor& tensor);
// Half precision as float32, for which LibTorch has all operators; without the graph.
at::Tensor as_scores(const at::Tensor& tensor);

// Used only from one thread, with gradients off.
class RowFilter {
 public:
  // `predictions` have the rows, and are named in messages. Throws invalid_argument if weights are
  // defined and do not fit them.
  RowFilter(const std::string& metric, const at::Tensor& predictions, const at::Tensor& weights);

  std::int64_t size() const { return size_; }
  const std::string& metric() const { return metric_; }
  // `is_good`: bool [rows]. Where values can be read, throws invalid_argument if a row that has a
  // weight is not good, with the number of `shown` in that row; elsewhere the row does not count.
  void require(const at::Tensor& is_good, std::string_view expected, const at::Tensor& shown);
  // Labels that are classes, as int64 [rows] in [0, classes), or not negative without a number of
  // classes; what is none is replaced. Throws invalid_argument as require() does, and if shape or
  // dtype is wrong.
  at::Tensor classes(const at::Tensor& labels, std::optional<std::int64_t> count);
  // Labels that are 0 or 1, as bool [rows]. Throws as classes() does.
  at::Tensor binary(const at::Tensor& labels);
  // The class of the largest score of each row of float [rows, classes].
  at::Tensor largest(const at::Tensor& scores);

  // The weights of which each counts a row, 0 and 1, as require() does.
  void require_counts();

  // These after the last require(). Float64 [rows], 0 where a row does not count.
  at::Tensor weights() const;
  // `of_rows`, [rows], with 0 where a row does not count.
  at::Tensor masked(const at::Tensor& of_rows) const;
  // How many rows count: int64 [].
  at::Tensor count() const;
  // How many are left out because they are not good: int64 []; undefined where update() throws.
  at::Tensor bad_count() const;

 private:
  void check_labels(const at::Tensor& labels) const;
  // Undefined: all rows count.
  at::Tensor counting() const;
  // The first bad row, for the message.
  [[noreturn]] void refuse(const at::Tensor& is_good, std::string_view expected,
                           const at::Tensor& shown) const;

  const std::string& metric_;
  const at::Tensor& predictions_;
  std::int64_t size_;
  bool reads_values_;
  at::Tensor weights_;  // float64 [rows]; undefined: all are 1
  at::Tensor present_;  // which rows have a weight; undefined: all
  at::Tensor good_;     // undefined: all
};

}  // namespace cohort::metrics
