// SPDX-License-Identifier: Apache-2.0
// The operators a server runs for a peer: an explicit list of aten:: names, and cohort::'s own.
#pragma once

#include <string_view>

namespace cohort::function {

bool is_allowed_op(std::string_view name);

}  // namespace cohort::function
