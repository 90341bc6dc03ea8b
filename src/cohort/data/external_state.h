// SPDX-License-Identifier: Apache-2.0
// State of a pipeline's functions that its bytes leave behind, and who hears of it
// (ExternalStatePolicy; docs/decisions/0012-external-state.md).
#pragma once

#include <memory>

#include "cohort/core/bytes.h"
#include "cohort/core/export.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Dataset::serialize() for workers of the same job: warns of such state whatever the dataset's own
// policy says, as all distribution does (spec 1.3).
COHORT_API Bytes serialize_for_workers(const Dataset& dataset);
// Dataset::serialize() under a policy.
Bytes serialize(const Dataset& dataset, ExternalStatePolicy policy);
// `source`, whose positions obey `policy`.
std::unique_ptr<ElementSource> with_policy(std::unique_ptr<ElementSource> source,
                                           const Dataset& dataset, ExternalStatePolicy policy);

}  // namespace cohort::data
