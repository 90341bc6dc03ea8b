// SPDX-License-Identifier: Apache-2.0
// How workers add their gradients of rows: each gathers the rows of all.
#pragma once

#include "cohort/replicas/reduction.h"

namespace cohort::internal {

// Makes the rows of this worker those that it sends: each once, after a mark where they begin. A
// worker without a gradient sends no mark; one of no rows is a gradient of zeros.
void prepare_to_gather(Reduction::Parts& parts);
// Adds the gathered rows in the tree in which dense gradients are added.
void add_gathered_rows(Reduction::Parts& parts);

}  // namespace cohort::internal
