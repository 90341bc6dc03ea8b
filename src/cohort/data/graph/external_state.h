// SPDX-License-Identifier: Apache-2.0
// Applies ExternalStatePolicy to a pipeline's functions with state that its bytes and its saved
// positions do not contain.
#pragma once

#include <memory>

#include "cohort/core/bytes.h"
#include "cohort/data/dataset.h"

namespace cohort::data {

// Dataset::serialize() under a policy.
Bytes serialize(const Dataset& dataset, ExternalStatePolicy policy);
// `source`, whose save() applies `policy`.
std::unique_ptr<ElementSource> with_policy(std::unique_ptr<ElementSource> source,
                                           const Dataset& dataset, ExternalStatePolicy policy);

}  // namespace cohort::data
