// SPDX-License-Identifier: Apache-2.0
// A number that tells datasets apart.
#pragma once

#include <cstdint>

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

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
