// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summaries/histogram.h"

#include <ATen/core/TensorBody.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bucketize.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/core/tensor_spec.h"

namespace cohort::train {
namespace {

// The upper ends of the ranges: 0, ±1e-12 · 1.1^i up to 1e20, and the largest numbers.
std::vector<double> make_limits() {
  constexpr double kSmallest = 1e-12, kLargest = 1e20, kRatio = 1.1;
  std::vector<double> positive;
  for (double limit = kSmallest; limit < kLargest; limit *= kRatio) positive.push_back(limit);
  positive.push_back(std::numeric_limits<double>::max());
  std::vector<double> limits;
  std::for_each(positive.rbegin(), positive.rend(),
                [&](double limit) { limits.push_back(-limit); });
  limits.push_back(0);
  limits.insert(limits.end(), positive.begin(), positive.end());
  return limits;
}

const std::vector<double>& limits() {
  static const std::vector<double> kLimits = make_limits();
  return kLimits;
}

void check_has_numbers(const at::Tensor& values, std::string_view name) {
  const bool is_number = values.defined() && !StringTensor::is(values) && !values.is_complex() &&
                         !values.is_sparse() && values.numel() > 0;
  COHORT_CHECK(
      is_number, ErrorCode::invalid_argument,
      "[train.summary_writer] expected one or more real numbers as histogram '", name, "', got ",
      values.defined() ? TensorSpec::of(values).to_string() : "an undefined tensor",
      values.defined() && values.is_sparse() ? " that is sparse; give it as values()" : "");
}

// Adds the ranges with their counts, each run of empty ones as one range.
void add_buckets(const double* counts, proto::HistogramProto& histogram) {
  const std::size_t size = limits().size();
  for (std::size_t i = 0; i < size; ++i) {
    const double count = counts[i];
    while (count == 0 && i + 1 < size && counts[i + 1] == 0) ++i;
    histogram.add_bucket_limit(limits()[i]);
    histogram.add_bucket(count);
  }
}

}  // namespace

proto::HistogramProto histogram_of(const at::Tensor& values, std::string_view name) {
  check_has_numbers(values, name);
  const at::NoGradGuard no_grad;
  const at::Tensor numbers = values.detach().flatten().to(at::kDouble);
  const std::int64_t missing = numbers.numel() - at::isfinite(numbers).sum().item<std::int64_t>();
  COHORT_CHECK(missing == 0, ErrorCode::invalid_argument,
               "[train.summary_writer] expected finite numbers as histogram '", name, "', got ",
               missing, " of ", numbers.numel(),
               " that are NaN or infinite; look for the step that made them, or select those with "
               "isfinite()");
  const auto count = static_cast<std::int64_t>(limits().size());
  const at::Tensor ends =
      at::from_blob(const_cast<double*>(limits().data()), {count}, at::TensorOptions(at::kDouble))
          .to(numbers.device());
  // A range begins with the limit before it; the largest number of all belongs to the last range.
  const at::Tensor places =
      at::bucketize(numbers, ends, /*out_int32=*/false, /*right=*/true).clamp_max(count - 1);
  const at::Tensor counts =
      at::bincount(places, /*weights=*/{}, /*minlength=*/count).to(at::kDouble).cpu();
  proto::HistogramProto histogram;
  histogram.set_min(numbers.min().item<double>());
  histogram.set_max(numbers.max().item<double>());
  histogram.set_num(static_cast<double>(numbers.numel()));
  histogram.set_sum(numbers.sum().item<double>());
  histogram.set_sum_squares(numbers.square().sum().item<double>());
  add_buckets(counts.data_ptr<double>(), histogram);
  return histogram;
}

}  // namespace cohort::train
