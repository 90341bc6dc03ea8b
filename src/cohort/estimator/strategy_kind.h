// SPDX-License-Identifier: Apache-2.0
// How the processes of a strategy work together.
#pragma once

#include <cstdint>

#include "cohort/strategy/strategy.h"

namespace cohort::estimator {

enum class StrategyKind : std::uint8_t {
  alone,        // one process
  collective,   // workers that make the same calls and wait for each other
  independent,  // workers that run the program, share variables and wait for nobody
  coordinator,  // one process gives steps to servers
};
StrategyKind kind_of(Strategy& strategy);

}  // namespace cohort::estimator
