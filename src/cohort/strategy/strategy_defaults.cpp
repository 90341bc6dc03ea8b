// SPDX-License-Identifier: Apache-2.0
// What strategies can do that do not say otherwise.
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_extended.h"

namespace cohort {
namespace {

[[noreturn]] void refuse_variables(std::string_view strategy, std::string_view method,
                                   const std::string& wanted) {
  internal::throw_error(ErrorCode::unimplemented, "[strategy.", method, "] ", wanted,
                        ": expected a strategy that has variables, got '", strategy,
                        "'; call the method of the strategy that trains (MirroredStrategy, "
                        "ParameterServerStrategy, …), or use local_variable() for one of this "
                        "process, which a step with one replica may update");
}

}  // namespace

internal::FunctionHost Strategy::function_host() {
  internal::throw_error(ErrorCode::unimplemented, "[strategy.function] expected a strategy whose ",
                        "replicas are in this process, got '", name(),
                        "'; give a cohort::Function to ClusterCoordinator::schedule()");
}

bool Strategy::owns(const Variable&) const { return false; }
std::vector<Variable> Strategy::components_of(const Variable& variable) const { return {variable}; }
std::vector<std::string> Strategy::devices_of(const Variable&) const { return {"CPU:0"}; }
StrategyExtended Strategy::extended() { return StrategyExtended(*this); }

Variable Strategy::create_variable(std::string variable, const at::Tensor& initial_value,
                                   const VariableOptions& options) {
  (void)initial_value, (void)options;
  refuse_variables(name(), "variable", "variable '" + variable + "'");
}

Variable Strategy::create_variable(std::string variable, const TensorSpec& spec,
                                   const Initializer& initializer, const VariableOptions& options) {
  (void)spec, (void)initializer, (void)options;
  refuse_variables(name(), "variable", "variable '" + variable + "'");
}

std::uint64_t Strategy::next_module_seed() { refuse_variables(name(), "replicate", "a module"); }

internal::ModuleVariables Strategy::place_module(std::string_view module,
                                                 std::vector<internal::ModuleCopy> copies) {
  (void)copies;
  refuse_variables(name(), "replicate", "module '" + std::string(module) + "'");
}

}  // namespace cohort
