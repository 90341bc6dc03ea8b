// SPDX-License-Identifier: Apache-2.0
// The VariableCreatorScopes of a thread.
#pragma once

#include <vector>

#include "cohort/strategy/strategy_extended.h"

namespace cohort::internal {

// The outermost first.
using VariableCreators = std::vector<const VariableCreatorScope*>;
// The creators of this thread. A replica's thread takes over those of the thread that called run().
VariableCreators& variable_creators();
// Passes the request through the creators of this thread, the innermost first, and then to
// `create`.
Variable created(VariableRequest request, const VariableCreatorScope::Next& create);

}  // namespace cohort::internal
