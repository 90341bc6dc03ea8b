// SPDX-License-Identifier: Apache-2.0
// The order of a dataset's elements: whether it is the same each time the dataset runs with the
// same seed, and whether the number of an iteration decides it.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Why two runs with equal IterationOptions may yield elements in different orders, naming the op
// ("'map' with deterministic = false"); empty if they cannot. Calls the functions of flat_map and
// interleave for examples, to look into the datasets that they make.
COHORT_API std::string why_order_may_change(const Dataset& dataset);
// Call it before several workers run the dataset and each takes its elements by number. Throws
// invalid_argument if the order may change. The message begins with `call`, and proposes to shard
// in `remedy_call`.
COHORT_API void check_order_is_fixed(const Dataset& dataset, std::string_view call,
                                     std::string_view remedy_call);
// Whether elements come in an order that a seed of the dataset and IterationOptions::iteration
// decide, another one in each iteration: there is a shuffle() with a seed. The functions of
// flat_map and interleave are not called.
COHORT_API bool is_reshuffled_by_seed(const Dataset& dataset);

}  // namespace cohort::data
