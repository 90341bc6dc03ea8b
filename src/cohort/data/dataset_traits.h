// SPDX-License-Identifier: Apache-2.0
// Answers what the graph of a dataset tells before it runs: whether iterating it can fail, whether
// the sizes in its spec are only guessed, whether the order of its elements may change, and a
// number that tells it apart from others.
#pragma once

#include <cstdint>
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

// Equal for datasets of the same ops with the same attributes, in every process, build and run:
// seeds, names of files, the numbers of shard() and the values of tensors all count. The attributes
// are hashed as they are serialized (docs/formats/pipeline.md), except for
// - functions: of the function of map() and filter() only its name counts, and nothing of the
//   functions of flat_map(), interleave() and from_generator() and of a map() of numbers. They are
//   neither called nor traced. So a dataset and what Dataset::deserialize() makes of its bytes have
//   the same fingerprint, and datasets that differ only in the code of a function are not told
//   apart: a name of its own, Function(fn, {.name = …}), makes them differ;
// - what changes no element: the sizes of read and prefetch buffers, and the number of parallel
//   calls (whether a batch() has any does count).
// The contents of files do not count, nor does IterationOptions. The values of tensors are read
// once per dataset. Thread-safe.
COHORT_API std::uint64_t graph_fingerprint(const Dataset& dataset);

}  // namespace cohort::data
