// SPDX-License-Identifier: Apache-2.0
// Checks a user's options, and converts them to those of the queue.
#pragma once

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator::internal {

// Fills in options that are not set from environment variables. Throws invalid_argument for an
// invalid value, naming the option or the variable.
COHORT_API CoordinatorOptions checked(CoordinatorOptions options);
COHORT_API QueueOptions queue_options(const CoordinatorOptions& options);

}  // namespace cohort::coordinator::internal
