// SPDX-License-Identifier: Apache-2.0
// What a user may set of a coordinator, checked, and as the queue takes it.
#pragma once

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/detail/closure_queue.h"

namespace cohort::coordinator::internal {

// With what the environment says of options that are not set. Throws invalid_argument, naming the
// option or the variable, for what cannot be.
COHORT_API CoordinatorOptions checked(CoordinatorOptions options);
COHORT_API QueueOptions queue_options(const CoordinatorOptions& options);

// For the texts of errors.
double seconds_of(Duration duration);

}  // namespace cohort::coordinator::internal
