// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

// Until the result is destroyed, no epoch of the strategy's coordinator schedules steps, and none
// of their steps runs, so that what is saved belongs together. Waits for those that run, and throws
// as Epoch::try_next() does if none of them ends. nullptr if there is no coordinator.
COHORT_API std::shared_ptr<void> hold_epochs(const ParameterServerStrategy& strategy);

}  // namespace cohort::coordinator
