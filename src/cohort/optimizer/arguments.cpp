// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/internal/arguments.h"

#include <cmath>

#include "cohort/core/error.h"

namespace cohort::optimizer {

void check_fraction(std::string_view optimizer, std::string_view name, double value) {
  COHORT_CHECK(value >= 0.0 && value < 1.0, ErrorCode::invalid_argument, "[optimizer.", optimizer,
               "] expected ", name, " in [0, 1), got ", value);
}

void check_not_negative(std::string_view optimizer, std::string_view name, double value) {
  COHORT_CHECK(std::isfinite(value) && value >= 0.0, ErrorCode::invalid_argument, "[optimizer.",
               optimizer, "] expected a finite ", name, " >= 0, got ", value);
}

void check_positive(std::string_view optimizer, std::string_view name, double value) {
  COHORT_CHECK(std::isfinite(value) && value > 0.0, ErrorCode::invalid_argument, "[optimizer.",
               optimizer, "] expected a finite ", name, " > 0, got ", value);
}

}  // namespace cohort::optimizer
