// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/variable_creators.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/thread_value.h"
#include "cohort/strategy/strategy_access.h"

namespace cohort {
namespace {

// The options with which variables of a ColocationScope are created.
VariableCreatorScope::Creator colocating(const Strategy& strategy, const Variable& variable) {
  COHORT_CHECK(&get_strategy() == &strategy, ErrorCode::failed_precondition,
               "[strategy.colocate_vars_with] expected '", strategy.name(),
               "' to be current, got '", get_strategy().name(), "'; enter its scope first");
  COHORT_CHECK(internal::StrategyAccess::owns(strategy, variable), ErrorCode::invalid_argument,
               "[strategy.colocate_vars_with] expected a variable of '", strategy.name(),
               "', got '", variable.name(), "', which is not; make it with strategy.variable()");
  return [variable](VariableRequest request, const VariableCreatorScope::Next& next) {
    if (!request.options.colocate_with) request.options.colocate_with = variable;
    return next(std::move(request));
  };
}

}  // namespace

VariableCreatorScope::VariableCreatorScope(Creator creator) : creator_(std::move(creator)) {
  COHORT_CHECK(creator_ != nullptr, ErrorCode::invalid_argument,
               "[strategy.variable_creator_scope] expected a function, got none");
  internal::variable_creators().push_back(this);
}

VariableCreatorScope::~VariableCreatorScope() { std::erase(internal::variable_creators(), this); }

ColocationScope::ColocationScope(const Strategy& strategy, const Variable& variable)
    : creator_(colocating(strategy, variable)) {}

namespace internal {

VariableCreators& variable_creators() {
  return ThreadValue<VariableCreators, struct CreatorsOfThread>::get();
}

Variable created(VariableRequest request, const VariableCreatorScope::Next& create) {
  VariableCreatorScope::Next next = create;
  for (const VariableCreatorScope* scope : variable_creators()) {
    next = [scope, outer = std::move(next)](VariableRequest inner) {
      return scope->creator()(std::move(inner), outer);
    };
  }
  return next(std::move(request));
}

}  // namespace internal

}  // namespace cohort
