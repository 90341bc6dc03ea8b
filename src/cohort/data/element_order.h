// SPDX-License-Identifier: Apache-2.0
// Whether a dataset yields its elements in the same order each time it runs with the same seed.
#pragma once

#include <string>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Why two runs with equal RunOptions may yield elements in different orders, naming the op
// ("'map' with deterministic = false"); empty if they cannot. Runs nothing. Ignores the datasets
// that the functions of flat_map and interleave return.
COHORT_API std::string why_order_may_change(const Dataset& dataset);

}  // namespace cohort::data
