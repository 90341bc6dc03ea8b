// SPDX-License-Identifier: Apache-2.0
// The operators a server runs for a peer: an explicit list of aten:: names, and cohort::'s own.
#pragma once

#include <string_view>

namespace cohort::function {

bool is_allowed_op(std::string_view name);
// A composite of the backward pass that takes another way where the grad mode is on. Programs hold
// it as one operator that ran with the mode off.
bool runs_without_gradients(std::string_view name);

}  // namespace cohort::function
