// SPDX-License-Identifier: Apache-2.0
// The base of all metrics, and the metrics that are means of a number of each row.
#include "cohort/metrics/metrics.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/metrics/metric_state.h"
#include "cohort/metrics/row_filter.h"

namespace cohort::metrics {
namespace {

std::shared_ptr<const MetricState> mean_state(const std::string& name) {
  return std::make_shared<const MetricState>(name, at::zeros({2}, at::TensorOptions(at::kDouble)));
}

// The mean of each row of [rows, …], as float64.
at::Tensor row_means(const at::Tensor& values) {
  const at::Tensor wide = values.to(at::kDouble);
  return wide.dim() == 1 ? wide : wide.flatten(1).mean(1);
}

}  // namespace

Metric::Metric(std::shared_ptr<const MetricState> state) : state_(std::move(state)) {}
const std::string& Metric::name() const { return state_->name(); }
std::int64_t Metric::rows() const { return state_->totals("rows").rows; }
void Metric::reset() const { state_->reset(); }
std::vector<Variable> Metric::variables() const { return state_->variables(); }

Mean::Mean(const MeanOptions& options) : Metric(mean_state(options.name)) {}

void Mean::update(const at::Tensor& values, const WeightOptions& options) const {
  const c10::NoGradGuard no_grad;
  COHORT_CHECK(values.defined(), ErrorCode::invalid_argument,
               "[metrics.update] expected values, got an undefined tensor (metric '", name(), "')");
  const bool is_one = values.dim() == 0;
  const at::Tensor given = is_one ? values.detach().unsqueeze(0) : values.detach();
  const bool is_one_weight = is_one && options.weights.defined() && options.weights.dim() == 0;
  RowFilter rows(name(), given, is_one_weight ? options.weights.unsqueeze(0) : options.weights);
  const at::Tensor means = row_means(given);
  rows.require(means.isfinite(), "finite values", means);
  state().add_mean(rows, means);
}

double Mean::result() const { return state().mean(); }

MeanSquaredError::MeanSquaredError(const MeanSquaredErrorOptions& options)
    : Metric(mean_state(options.name)) {}

void MeanSquaredError::update(const LabeledRows& batch) const {
  const c10::NoGradGuard no_grad;
  check_is_given(name(), batch);
  const at::Tensor labels = as_rows(batch.labels.detach());
  const at::Tensor predictions = as_rows(batch.predictions.detach());
  COHORT_CHECK(labels.sizes() == predictions.sizes(), ErrorCode::invalid_argument,
               "[metrics.update] expected labels and predictions of equal sizes, got ",
               TensorSpec::of(batch.labels).to_string(), " and ",
               TensorSpec::of(batch.predictions).to_string(), " (metric '", name(), "')");
  RowFilter rows(name(), predictions, batch.weights);
  const at::Tensor errors = row_means(
      predictions.to(at::kDouble).sub(labels.to(predictions.device(), at::kDouble)).square());
  rows.require(errors.isfinite(), "labels and predictions whose squared error is finite", errors);
  state().add_mean(rows, errors);
}

double MeanSquaredError::result() const { return state().mean(); }

Accuracy::Accuracy(const AccuracyOptions& options)
    : Metric(mean_state(options.name)), threshold_(options.threshold) {
  COHORT_CHECK(std::isfinite(threshold_), ErrorCode::invalid_argument,
               "[metrics.accuracy] expected a finite threshold, got ", threshold_, " (metric '",
               name(), "')");
}

void Accuracy::update(const LabeledRows& batch) const {
  const c10::NoGradGuard no_grad;
  check_is_given(name(), batch);
  const at::Tensor predictions = as_rows(as_scores(batch.predictions));
  COHORT_CHECK(predictions.dim() == 1 || (predictions.dim() == 2 && predictions.size(1) > 0 &&
                                          predictions.is_floating_point()),
               ErrorCode::invalid_argument,
               "[metrics.update] expected predictions [rows], or floating-point scores [rows, "
               "classes], got ",
               TensorSpec::of(batch.predictions).to_string(), " for labels ",
               TensorSpec::of(batch.labels).to_string(), " (metric '", name(),
               "'); flatten() the rows of sequences");
  RowFilter rows(name(), predictions, batch.weights);
  at::Tensor is_right;
  if (predictions.dim() == 2) {
    const at::Tensor labels = rows.classes(batch.labels, predictions.size(1));
    is_right = rows.largest(predictions).eq(labels);
  } else if (predictions.is_floating_point()) {
    const at::Tensor labels = rows.binary(batch.labels);
    rows.require(~predictions.isnan(), "predictions without NaN", predictions);
    is_right = predictions.gt(threshold_).eq(labels);
  } else {
    const at::Tensor labels = rows.classes(batch.labels, std::nullopt);
    is_right = rows.classes(predictions, std::nullopt).eq(labels);
  }
  state().add_mean(rows, is_right);
}

double Accuracy::result() const { return state().mean(); }

TopK::TopK(const TopKOptions& options) : Metric(mean_state(options.name)), k_(options.k) {
  COHORT_CHECK(k_ > 0, ErrorCode::invalid_argument, "[metrics.top_k] expected k > 0, got ", k_,
               " (metric '", name(), "')");
}

void TopK::update(const LabeledRows& batch) const {
  const c10::NoGradGuard no_grad;
  check_is_given(name(), batch);
  const at::Tensor scores = as_scores(batch.predictions);
  COHORT_CHECK(scores.dim() == 2 && scores.is_floating_point() && scores.size(1) >= k_,
               ErrorCode::invalid_argument,
               "[metrics.update] expected floating-point scores [rows, classes] of at least ", k_,
               " classes, got ", TensorSpec::of(batch.predictions).to_string(), " for labels ",
               TensorSpec::of(batch.labels).to_string(), " (metric '", name(), "')");
  RowFilter rows(name(), scores, batch.weights);
  const at::Tensor labels = rows.classes(batch.labels, scores.size(1));
  const at::Tensor largest = scores.amax(1);  // NaN if one is
  rows.require(~largest.isnan(), "predictions without NaN", largest);
  const at::Tensor larger = scores.gt(scores.gather(1, labels.unsqueeze(1))).sum(1);
  state().add_mean(rows, larger.lt(k_));
}

double TopK::result() const { return state().mean(); }

}  // namespace cohort::metrics
