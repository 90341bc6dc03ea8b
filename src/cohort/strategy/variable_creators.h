// SPDX-License-Identifier: Apache-2.0
// The VariableCreatorScopes of a thread.
#pragma once

#include <vector>

#include "cohort/strategy/strategy_extended.h"

namespace cohort::internal {

// The outermost first.
using VariableCreators = std::vector<const VariableCreatorScope*>;
const VariableCreators& variable_creators();
// Sets those of this thread, and returns the ones before. A replica's thread takes over those of
// the thread that called run().
VariableCreators exchange_variable_creators(VariableCreators creators);
// Passes the request through the creators of this thread, the innermost first, and then to
// `create`.
Variable created(VariableRequest request, const VariableCreatorScope::Next& create);

}  // namespace cohort::internal
