// SPDX-License-Identifier: Apache-2.0
#include "cohort/metrics/row_filter.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros_like.h>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/trace.h"

namespace cohort::metrics {
namespace {

std::string text_of(const at::Tensor& tensor) { return TensorSpec::of(tensor).to_string(); }

void check_tensor_is_given(const std::string& metric, const at::Tensor& tensor,
                           std::string_view what) {
  COHORT_CHECK(tensor.defined(), ErrorCode::invalid_argument, "[metrics.update] expected ", what,
               ", got an undefined tensor (metric '", metric, "')");
}

}  // namespace

void check_is_given(const std::string& metric, const LabeledRows& batch) {
  check_tensor_is_given(metric, batch.labels, "labels");
  check_tensor_is_given(metric, batch.predictions, "predictions");
  COHORT_CHECK(batch.predictions.dim() > 0, ErrorCode::invalid_argument,
               "[metrics.update] expected predictions with a dimension of rows, got ",
               text_of(batch.predictions), " (metric '", metric, "')");
}

at::Tensor as_rows(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.size(1) == 1 ? tensor.squeeze(1) : tensor;
}

at::Tensor as_scores(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach();
  const bool is_narrow = plain.scalar_type() == at::kHalf || plain.scalar_type() == at::kBFloat16;
  return is_narrow ? plain.to(at::kFloat) : plain;
}

RowFilter::RowFilter(const std::string& metric, const at::Tensor& predictions,
                     const at::Tensor& weights)
    : metric_(metric),
      predictions_(predictions),
      size_(predictions.size(0)),
      // To read a value of another device would wait for it.
      reads_values_(function::Trace::current() == nullptr && predictions.device().is_cpu()) {
  if (!weights.defined()) return;
  const at::Tensor of_rows = as_rows(weights);
  COHORT_CHECK(of_rows.dim() == 1 && of_rows.size(0) == size_, ErrorCode::invalid_argument,
               "[metrics.update] expected weights [", size_, "], one for each row of ",
               text_of(predictions), ", got ", text_of(weights), " (metric '", metric, "')");
  weights_ = of_rows.detach().to(predictions.device(), at::kDouble);
  const at::Tensor is_good = weights_.isfinite().logical_and_(weights_.ge(0));
  require(is_good, "finite weights that are not negative", weights_);
  present_ = weights_.ne(0);
}

void RowFilter::require(const at::Tensor& is_good, std::string_view expected,
                        const at::Tensor& shown) {
  if (!reads_values_) {
    good_ = good_.defined() ? good_.logical_and(is_good) : is_good;
    return;
  }
  if (is_good.all().item<bool>()) return;
  const at::Tensor is_used = present_.defined() ? is_good.logical_or(~present_) : is_good;
  if (!is_used.all().item<bool>()) refuse(is_used, expected, shown);
}

void RowFilter::refuse(const at::Tensor& is_good, std::string_view expected,
                       const at::Tensor& shown) const {
  const std::int64_t row = is_good.to(at::kInt).argmin().item<std::int64_t>();
  internal::throw_error(ErrorCode::invalid_argument, "[metrics.update] expected ", expected,
                        ", got ", shown[row].item<double>(), " in row ", row, " of ", size_,
                        " (metric '", metric_,
                        "'); correct the row, or give it the weight 0, with which it does not "
                        "count");
}

void RowFilter::check_labels(const at::Tensor& labels) const {
  COHORT_CHECK(labels.dim() == 1 && labels.size(0) == size_, ErrorCode::invalid_argument,
               "[metrics.update] expected labels [", size_, "], one for each row of predictions ",
               text_of(predictions_), ", got ", text_of(labels), " (metric '", metric_,
               "'); for one-hot labels pass labels.argmax(1); flatten() the rows of sequences");
}

at::Tensor RowFilter::classes(const at::Tensor& labels, std::optional<std::int64_t> count) {
  const at::Tensor given = as_rows(labels);
  check_labels(given);
  COHORT_CHECK(at::isIntegralType(given.scalar_type(), /*includeBool=*/false),
               ErrorCode::invalid_argument, "[metrics.update] expected classes as integers, got ",
               text_of(labels), " (metric '", metric_, "'); convert them with to(torch::kLong)");
  const at::Tensor classes = given.to(predictions_.device(), at::kLong);
  if (!count) {
    require(classes.ge(0), "classes that are not negative", classes);
    return classes;
  }
  const std::string expected = "classes from 0 to " + std::to_string(*count - 1);
  require(classes.ge(0).logical_and_(classes.lt(*count)), expected, classes);
  return classes.clamp(0, *count - 1);
}

at::Tensor RowFilter::binary(const at::Tensor& labels) {
  const at::Tensor given = as_rows(labels.detach());
  check_labels(given);
  if (given.scalar_type() == at::kBool) return given.to(predictions_.device());
  const at::Tensor is_one = given.eq(1).to(predictions_.device());
  require(given.eq(0).to(predictions_.device()).logical_or_(is_one), "labels 0 and 1", given);
  return is_one;
}

at::Tensor RowFilter::largest(const at::Tensor& scores) {
  const auto [best, index] = scores.max(1);
  require(~best.isnan(), "predictions without NaN", best);
  return index;
}

void RowFilter::require_counts() {
  if (!weights_.defined()) return;
  require(weights_.eq(0).logical_or_(weights_.eq(1)),
          "weights 0 and 1 (or ConfusionMatrixOptions::is_weighted)", weights_);
}

at::Tensor RowFilter::counting() const {
  if (!good_.defined() || !present_.defined()) return good_.defined() ? good_ : present_;
  return good_.logical_and(present_);
}

at::Tensor RowFilter::weights() const {
  const at::Tensor counts = counting();
  if (!counts.defined())
    return at::ones({size_}, at::TensorOptions(at::kDouble).device(predictions_.device()));
  return weights_.defined() ? weights_.masked_fill(~counts, 0) : counts.to(at::kDouble);
}

at::Tensor RowFilter::masked(const at::Tensor& of_rows) const {
  const at::Tensor counts = counting();
  return counts.defined() ? of_rows.masked_fill(~counts, 0) : of_rows;
}

at::Tensor RowFilter::count() const {
  const at::Tensor counts = counting();
  if (counts.defined()) return counts.sum();
  return at::full({}, size_, at::TensorOptions(at::kLong).device(predictions_.device()));
}

at::Tensor RowFilter::bad_count() const {
  if (!good_.defined()) return {};
  const at::Tensor is_bad = ~good_;
  return (present_.defined() ? is_bad.logical_and(present_) : is_bad).sum();
}

}  // namespace cohort::metrics
