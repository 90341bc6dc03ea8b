// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/core/export.h"

namespace cohort::rpc {

// Whether the environment variable COHORT_METRICS is "1", which makes every task serve metrics.
// Throws invalid_argument unless it is 0, 1 or not set.
COHORT_API bool serves_metrics_by_environment();

}  // namespace cohort::rpc
