// SPDX-License-Identifier: Apache-2.0
// Whether the sizes in a dataset's spec are only guessed.
#pragma once

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// True if sizes of the spec were learned from a few elements, because a map has no output_spec or
// an op makes datasets of its elements: later elements may have other sizes. A batch that drops its
// remainder sets its own number of rows, so it does not guess, whatever its input does.
COHORT_API bool guesses_sizes(const Dataset& dataset);

}  // namespace cohort::data
