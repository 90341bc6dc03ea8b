// SPDX-License-Identifier: Apache-2.0
// Whether a dataset yields its elements in the same order each time it runs with the same seed.
#pragma once

#include <string>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Why two runs with equal IterationOptions may yield elements in different orders, naming the op
// ("'map' with deterministic = false"); empty if they cannot. Calls the functions of flat_map and
// interleave for examples, to look into the datasets that they make.
COHORT_API std::string why_order_may_change(const Dataset& dataset);

}  // namespace cohort::data
