// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/json_number.h"

#include <cmath>
#include <limits>

#include "cohort/core/error.h"

namespace cohort::train {
namespace {

constexpr const char* kNan = "NaN";
constexpr const char* kInfinity = "Infinity";
constexpr const char* kMinusInfinity = "-Infinity";

}  // namespace

Json json_of(double value) {
  if (std::isnan(value)) return kNan;
  if (std::isinf(value)) return value > 0 ? kInfinity : kMinusInfinity;
  return value;
}

double double_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  constexpr double kLimit = std::numeric_limits<double>::infinity();
  if (json == kInfinity) return kLimit;
  if (json == kMinusInfinity) return -kLimit;
  COHORT_CHECK(json == kNan, ErrorCode::invalid_argument, "[train.state] expected a number, got ",
               json.dump());
  return std::numeric_limits<double>::quiet_NaN();
}

}  // namespace cohort::train
