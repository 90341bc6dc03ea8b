// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "cohort/core/export.h"
#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort::coordinator {

class Runtime;

// The runtime of the strategy's coordinator; nullptr if there is none.
std::shared_ptr<Runtime> runtime_of(const ParameterServerStrategy& strategy);

// How many closures of the strategy's coordinator wait or run; 0 if it has no coordinator.
COHORT_API std::size_t open_closures_of(const ParameterServerStrategy& strategy);

}  // namespace cohort::coordinator
