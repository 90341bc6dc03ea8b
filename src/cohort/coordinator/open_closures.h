// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

// How many closures of the strategy's coordinator wait or run; 0 if it has no coordinator.
COHORT_API std::size_t open_closures_of(const ParameterServerStrategy& strategy);

}  // namespace cohort::coordinator
