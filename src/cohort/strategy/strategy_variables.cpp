// SPDX-License-Identifier: Apache-2.0
// How a strategy uses the home of its variables, if it has one.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_parts.h"

namespace cohort {

internal::StrategyVariables& Strategy::variables_for(std::string_view method,
                                                     const std::string& what) const {
  internal::StrategyVariables* const own = variables();
  COHORT_CHECK(own != nullptr, ErrorCode::unimplemented, "[strategy.", method, "] ", what,
               ": expected a strategy that has variables, got '", name(),
               "'; call the method of the strategy that trains (MirroredStrategy, "
               "ParameterServerStrategy, …), or use local_variable() for one of this process, "
               "which a step with one replica may update");
  return *own;
}

std::uint64_t Strategy::next_module_seed() {
  return variables_for("replicate", "a module").next_module_seed();
}

int Strategy::num_modules() const { return variables_for("replicate", "a module").num_modules(); }

internal::ModuleVariables Strategy::place_module(std::string_view module,
                                                 std::vector<internal::ModuleCopy> copies) {
  return variables_for("replicate", "module '" + std::string(module) + "'")
      .place_module(module, std::move(copies));
}

StrategyExtended Strategy::extended() { return StrategyExtended(*this); }

namespace internal {

bool StrategyAccess::owns(const Strategy& strategy, const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->owns(variable) : &strategy == &default_strategy();
}

std::vector<Variable> StrategyAccess::components_of(const Strategy& strategy,
                                                    const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->components_of(variable) : std::vector<Variable>{variable};
}

std::vector<std::string> StrategyAccess::devices_of(const Strategy& strategy,
                                                    const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->devices_of(variable) : std::vector<std::string>{"CPU:0"};
}

}  // namespace internal

}  // namespace cohort
