// SPDX-License-Identifier: Apache-2.0
// Who hears of state of a pipeline's functions that its bytes, or its positions, leave behind.
#pragma once

#include <memory>

#include "cohort/core/bytes.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Dataset::serialize() under a policy.
Bytes serialize(const Dataset& dataset, ExternalStatePolicy policy);
// `source`, whose positions obey `policy`.
std::unique_ptr<ElementSource> with_policy(std::unique_ptr<ElementSource> source,
                                           const Dataset& dataset, ExternalStatePolicy policy);

}  // namespace cohort::data
