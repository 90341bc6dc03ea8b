// SPDX-License-Identifier: Apache-2.0
// The metrics whose sums are histograms.
#include <ATen/core/TensorBody.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/metrics/metric_state.h"
#include "cohort/metrics/metrics.h"
#include "cohort/metrics/row_filter.h"

namespace cohort::metrics {
namespace {

// The sum of the weights of all rows for each pair (major, minor), both int64 [rows] and in range.
at::Tensor histogram(const at::Tensor& major, const at::Tensor& minor, const at::Tensor& weights,
                     std::int64_t majors, std::int64_t minors) {
  const at::Tensor places = major.mul(minors).add(minor);
  return at::zeros({majors * minors}, weights.options())
      .scatter_add(0, places, weights)
      .view({majors, minors});
}

// The weights of negative and positive rows whose predictions are above each threshold, and above
// the next one, up to a threshold that none is above.
struct Positives {
  std::vector<double> is_false, is_true;
};

Positives above_thresholds(const at::Tensor& sums) {
  const auto from_above = [&](std::int64_t label) {
    const at::Tensor of_label = sums[label].contiguous();
    const double* const weights = of_label.data_ptr<double>();
    std::vector<double> above(static_cast<std::size_t>(of_label.numel()));
    double sum = 0;
    for (std::size_t i = above.size(); i-- > 0;) above[i] = sum += weights[i];
    return above;
  };
  return {from_above(0), from_above(1)};
}

// Trapezoids between the points of the thresholds.
double area_under_roc(const Positives& at) {
  const double negatives = at.is_false.front(), positives = at.is_true.front();
  double area = 0;
  for (std::size_t i = 0; i + 1 < at.is_true.size(); ++i)
    area += (at.is_false[i] - at.is_false[i + 1]) * (at.is_true[i] + at.is_true[i + 1]) / 2;
  return area / negatives / positives;
}

// Between two thresholds the true positives grow in proportion to all predicted ones, and the area
// under precision is integrated (keras's interpolate_pr_auc; Davis and Goadrich 2006).
double area_under_precision_recall(const Positives& at) {
  double area = 0;
  for (std::size_t i = 0; i + 1 < at.is_true.size(); ++i) {
    const double upper = at.is_true[i] + at.is_false[i];  // at the lower threshold
    const double lower = at.is_true[i + 1] + at.is_false[i + 1];
    if (upper <= lower) continue;
    const double slope = (at.is_true[i] - at.is_true[i + 1]) / (upper - lower);
    const double intercept = at.is_true[i + 1] - slope * lower;
    const double ratio = lower > 0 ? upper / lower : 1;
    area += slope * (at.is_true[i] - at.is_true[i + 1] + intercept * std::log(ratio));
  }
  return area / at.is_true.front();
}

std::int64_t checked_thresholds(const AUCOptions& options) {
  COHORT_CHECK(options.thresholds >= 2, ErrorCode::invalid_argument,
               "[metrics.auc] expected at least 2 thresholds, got ", options.thresholds,
               " (metric '", options.name, "')");
  return options.thresholds;
}

std::shared_ptr<const MetricState> matrix_state(const ConfusionMatrixOptions& options) {
  COHORT_CHECK(options.classes > 0, ErrorCode::invalid_argument,
               "[metrics.confusion_matrix] expected classes > 0, got ", options.classes,
               " (metric '", options.name, "')");
  const at::TensorOptions type(options.is_weighted ? at::kDouble : at::kLong);
  return std::make_shared<const MetricState>(options.name,
                                             at::zeros({options.classes, options.classes}, type));
}

}  // namespace

// The last threshold is above all predictions, so its histogram stays 0.
AUC::AUC(const AUCOptions& options)
    : Metric(std::make_shared<const MetricState>(
          options.name,
          at::zeros({2, checked_thresholds(options)}, at::TensorOptions(at::kDouble)))),
      thresholds_(options.thresholds),
      curve_(options.curve),
      from_logits_(options.from_logits) {}

void AUC::update(const LabeledRows& batch) const {
  const c10::NoGradGuard no_grad;
  check_is_given(name(), batch);
  const at::Tensor given = as_rows(batch.predictions.detach());
  COHORT_CHECK(given.dim() == 1 && given.is_floating_point(), ErrorCode::invalid_argument,
               "[metrics.update] expected one floating-point prediction for each row, got ",
               TensorSpec::of(batch.predictions).to_string(), " for labels ",
               TensorSpec::of(batch.labels).to_string(), " (metric '", name(),
               "'); of two classes pass the scores of the second one");
  RowFilter rows(name(), given, batch.weights);
  const at::Tensor labels = rows.binary(batch.labels);
  const at::Tensor wide = given.to(at::kDouble);
  const at::Tensor predictions = from_logits_ ? wide.sigmoid() : wide;
  rows.require(
      predictions.ge(0).logical_and_(predictions.le(1)),
      from_logits_ ? "logits without NaN" : "predictions from 0 to 1 (or AUCOptions::from_logits)",
      wide);
  // The last threshold that the prediction is above; 0 is above the first one (keras's -epsilon).
  const at::Tensor buckets =
      predictions.mul(thresholds_ - 1).ceil().sub(1).to(at::kLong).clamp(0, thresholds_ - 2);
  state().add(rows, histogram(labels.to(at::kLong), buckets, rows.weights(), 2, thresholds_));
}

double AUC::result() const {
  const Positives above = above_thresholds(state().totals("result").sums);
  const double negatives = above.is_false.front(), positives = above.is_true.front();
  state().check_has_rows(negatives + positives > 0);
  const bool is_roc = curve_ == AUCCurve::roc;
  COHORT_CHECK(positives > 0 && (!is_roc || negatives > 0), ErrorCode::failed_precondition,
               "[metrics.result] expected positive ", is_roc ? "and negative " : "",
               "rows, got a weight of ", positives, " positive and ", negatives,
               " negative ones (metric '", name(), "'), for which there is no curve");
  return is_roc ? area_under_roc(above) : area_under_precision_recall(above);
}

ConfusionMatrix::ConfusionMatrix(const ConfusionMatrixOptions& options)
    : Metric(matrix_state(options)), classes_(options.classes), is_weighted_(options.is_weighted) {}

void ConfusionMatrix::update(const LabeledRows& batch) const {
  const c10::NoGradGuard no_grad;
  check_is_given(name(), batch);
  const at::Tensor predictions = as_rows(as_scores(batch.predictions));
  const bool are_scores =
      predictions.dim() == 2 && predictions.size(1) == classes_ && predictions.is_floating_point();
  COHORT_CHECK(predictions.dim() == 1 || are_scores, ErrorCode::invalid_argument,
               "[metrics.update] expected classes [rows], or floating-point scores [rows, ",
               classes_, "], got ", TensorSpec::of(batch.predictions).to_string(), " for labels ",
               TensorSpec::of(batch.labels).to_string(), " (metric '", name(), "')");
  RowFilter rows(name(), predictions, batch.weights);
  const at::Tensor labels = rows.classes(batch.labels, classes_);
  const at::Tensor predicted =
      are_scores ? rows.largest(predictions) : rows.classes(predictions, classes_);
  if (!is_weighted_) rows.require_counts();
  const at::Tensor weights = rows.weights().to(is_weighted_ ? at::kDouble : at::kLong);
  state().add(rows, histogram(labels, predicted, weights, classes_, classes_));
}

at::Tensor ConfusionMatrix::result() const { return state().totals("result").sums; }

}  // namespace cohort::metrics
