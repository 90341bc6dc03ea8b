// SPDX-License-Identifier: Apache-2.0
// The operators that a server runs for a peer: an explicit list of aten:: names, and the cohort::
// ones.
#pragma once

#include <string_view>

namespace cohort::function {

bool is_allowed_op(std::string_view name);

}  // namespace cohort::function
