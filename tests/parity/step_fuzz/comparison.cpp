// SPDX-License-Identifier: Apache-2.0
#include "tests/parity/step_fuzz/comparison.h"

#include <cmath>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "cohort/core/tensor_spec.h"

namespace cohort::parity {
namespace {

bool same_number(double actual, double expected, Tolerance tolerance) {
  if (std::isnan(actual) || std::isnan(expected)) return std::isnan(actual) == std::isnan(expected);
  if (actual == expected)
    return tolerance.ignores_sign_of_zero || std::signbit(actual) == std::signbit(expected);
  const double size = std::max({1.0, std::abs(actual), std::abs(expected)});
  return std::abs(actual - expected) <= tolerance.relative * size;
}

}  // namespace

std::string difference(const at::Tensor& actual, const at::Tensor& expected, Tolerance tolerance) {
  const TensorSpec spec = TensorSpec::of(expected);
  if (TensorSpec::of(actual) != spec)
    return TensorSpec::of(actual).to_string() + " instead of " + spec.to_string();
  const at::Tensor a = actual.detach().contiguous(), b = expected.detach().contiguous();
  if (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0) return {};
  // int64 values are small enough that float64 represents them exactly.
  const at::Tensor x = a.to(c10::kDouble).flatten(), y = b.to(c10::kDouble).flatten();
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double got = x.data_ptr<double>()[i], wanted = y.data_ptr<double>()[i];
    if (same_number(got, wanted, tolerance)) continue;
    std::ostringstream text;
    text << std::setprecision(17) << "element " << i << " of " << spec.to_string() << " is " << got
         << " instead of " << wanted;
    return text.str();
  }
  return {};
}

}  // namespace cohort::parity
