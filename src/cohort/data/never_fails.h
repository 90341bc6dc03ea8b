// SPDX-License-Identifier: Apache-2.0
// Whether a dataset can fail while it runs.
#pragma once

#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Every element will come, and as many as cardinality() says: no user function runs, no file is
// read, and no shape can surprise.
COHORT_API bool never_fails(const Dataset& dataset);

}  // namespace cohort::data
