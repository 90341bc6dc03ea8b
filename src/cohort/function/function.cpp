// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/function.h"

namespace cohort {

Function Function::registered(std::string name) {
  COHORT_CHECK(!name.empty(), ErrorCode::invalid_argument,
               "[function.registered] expected a name, got an empty one");
  auto state = std::make_shared<State>();
  state->name = name;
  state->registered_name = std::move(name);
  Function made;
  made.state_ = std::move(state);
  return made;
}

Nest Function::call(std::span<const Nest> arguments) const {
  COHORT_CHECK(state_->body != nullptr, ErrorCode::failed_precondition, "[function.call] '", name(),
               "' is registered on the servers and has no body here; schedule it instead");
  return state_->body(arguments);
}

}  // namespace cohort
