// SPDX-License-Identifier: Apache-2.0
// Whether a dataset yields its elements in the same order each time it runs with the same seed.
#pragma once

#include <string>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Why two runs with equal RunOptions may differ in the order of their elements, naming the op
// ("'map' with deterministic = false"); empty: they do not. Runs nothing. Does not look into the
// datasets that flat_map and interleave make.
COHORT_API std::string why_order_may_change(const Dataset& dataset);

}  // namespace cohort::data
