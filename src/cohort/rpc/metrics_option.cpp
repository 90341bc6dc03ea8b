// SPDX-License-Identifier: Apache-2.0
#include "cohort/rpc/metrics_option.h"

#include <cstdlib>
#include <string_view>

#include "cohort/core/error.h"

namespace cohort::rpc {

bool serves_metrics_by_environment() {
  const char* const text = std::getenv("COHORT_METRICS");
  const std::string_view value = text == nullptr ? "" : text;
  COHORT_CHECK(value.empty() || value == "0" || value == "1", ErrorCode::invalid_argument,
               "[rpc.serve] expected 0 or 1 in COHORT_METRICS, got '", value, "'");
  return value == "1";
}

}  // namespace cohort::rpc
