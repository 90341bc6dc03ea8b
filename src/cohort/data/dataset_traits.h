// SPDX-License-Identifier: Apache-2.0
// Answers what the graph of a dataset tells before it runs: whether iterating it can fail, whether
// the sizes in its spec are only guessed, and whether the order of its elements may change.
#pragma once

#include <string>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// True if iteration cannot throw and yields exactly cardinality() elements: the graph runs no user
// function, reads no file and batches only elements of static shapes.
COHORT_API bool cannot_fail(const Dataset& dataset);

// True if sizes of the spec were learned from a few elements, because a map has no output_spec or
// an op makes datasets of its elements: later elements may have other sizes. A batch that drops its
// remainder sets its own number of rows, so it does not guess, whatever its input does.
COHORT_API bool guesses_sizes(const Dataset& dataset);

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
