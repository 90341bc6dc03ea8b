// SPDX-License-Identifier: Apache-2.0
// Checks a user's options, and converts them to those of the queue.
#pragma once

#include <cstdint>

#include "cohort/coordinator/cluster_coordinator.h"
#include "cohort/coordinator/queue/closure_queue.h"

namespace cohort::coordinator::internal {

// Fills in options that are not set from environment variables. Throws invalid_argument for an
// invalid value, naming the option or the variable.
COHORT_API CoordinatorOptions checked(CoordinatorOptions options);
// How long after the coordinator's start this worker gets its first closure.
COHORT_API Duration start_delay_of(const CoordinatorOptions& options, std::uint32_t worker);
COHORT_API QueueOptions queue_options(const CoordinatorOptions& options);

}  // namespace cohort::coordinator::internal
