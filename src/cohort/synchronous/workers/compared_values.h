// SPDX-License-Identifier: Apache-2.0
// Whether variables have the same values on all workers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "cohort/variable/variable.h"

namespace cohort::internal {

class StrategyWorkers;

// In place of the hash of a value that may differ on each worker.
inline constexpr std::uint64_t kMayDiffer = 0;
// Equal on all workers if the value is. A component has none of its own, nor has a variable whose
// replicas may differ.
std::uint64_t hash_of_value(const Variable& variable);

// All workers make this call; what `state` returns must be alike. Compares the variables that a
// worker has given and the first one, too. If a value differs, throws failed_precondition on all,
// which names the variable and two workers.
void compare_values(StrategyWorkers& workers, std::string_view call,
                    std::span<const Variable> variables, const std::function<std::string()>& state);

}  // namespace cohort::internal
