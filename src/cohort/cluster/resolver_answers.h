// SPDX-License-Identifier: Apache-2.0
// Keeps the answers that a resolver gives now.
#pragma once

#include <memory>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"

namespace cohort::cluster {

// The resolver itself may change later, or go. The master is that of the own task.
COHORT_API std::unique_ptr<const SimpleResolver> answers_of(const ClusterResolver& resolver);

}  // namespace cohort::cluster
