// SPDX-License-Identifier: Apache-2.0
// Checks of what optimizers are constructed with: invalid_argument, as
// "[optimizer.adam] expected beta_1 in [0, 1), got 2".
#pragma once

#include <string_view>

namespace cohort::optimizer {

// In [0, 1).
void check_fraction(std::string_view optimizer, std::string_view name, double value);
void check_not_negative(std::string_view optimizer, std::string_view name, double value);
void check_positive(std::string_view optimizer, std::string_view name, double value);

}  // namespace cohort::optimizer
