// SPDX-License-Identifier: Apache-2.0
// State of a pipeline's functions that its bytes leave behind (ExternalStatePolicy;
// docs/decisions/0012-external-state.md), where datasets are shipped.
#pragma once

#include <vector>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Dataset::serialize() for workers of the same job, a dataset each: warns of such state, once for
// all, whatever the datasets' own policy says, as all distribution does (spec 1.3).
COHORT_API std::vector<Bytes> serialize_for_workers(const std::vector<Dataset>& datasets);

}  // namespace cohort::data
