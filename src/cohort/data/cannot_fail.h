// SPDX-License-Identifier: Apache-2.0
// Whether iterating a dataset can fail.
#pragma once

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// True if iteration cannot throw and yields exactly cardinality() elements: the graph runs no user
// function, reads no file and batches only elements of static shapes.
COHORT_API bool cannot_fail(const Dataset& dataset);

}  // namespace cohort::data
