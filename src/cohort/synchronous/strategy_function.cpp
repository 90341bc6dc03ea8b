// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/strategy_function.h"

#include "cohort/core/error.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/traced/traced_programs.h"

namespace cohort::internal {
namespace {

// The default strategy lies below the traced steps, so it has no host for them: its one replica is
// the calling thread, without variables.
FunctionHost* host_of(Strategy& strategy) {
  static FunctionHost of_default(default_strategy(), {}, {});
  return &strategy == &default_strategy() ? &of_default : StrategyAccess::functions(strategy);
}

std::shared_ptr<StepPrograms> programs_of(Strategy& strategy, const Function& function) {
  FunctionHost* const host = host_of(strategy);
  COHORT_CHECK(host != nullptr, ErrorCode::unimplemented,
               "[strategy.function] expected a strategy whose replicas are in this process, got '",
               strategy.name(), "'; give a cohort::Function to ClusterCoordinator::schedule()");
  return host->programs(function);
}

}  // namespace

ReplicaFunction::ReplicaFunction(Strategy& strategy, Function function)
    : strategy_(&strategy),
      function_(std::move(function)),
      programs_(programs_of(strategy, function_)) {}

std::vector<Nest> ReplicaFunction::call(std::vector<std::vector<Nest>> arguments) const {
  return programs_->call(std::move(arguments));
}

std::size_t ReplicaFunction::replicas() const {
  return static_cast<std::size_t>(StrategyAccess::num_local_replicas(*strategy_));
}

std::size_t ReplicaFunction::traces() const { return programs_->traces(); }

}  // namespace cohort::internal
