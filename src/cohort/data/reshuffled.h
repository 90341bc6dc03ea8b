// SPDX-License-Identifier: Apache-2.0
// Whether the number of an iteration decides the order of a dataset.
#pragma once

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Whether elements come in an order that a seed of the dataset and IterationOptions::iteration
// decide, another one in each iteration: there is a shuffle() with a seed. The functions of
// flat_map and interleave are not called.
COHORT_API bool is_reshuffled_by_seed(const Dataset& dataset);

}  // namespace cohort::data
