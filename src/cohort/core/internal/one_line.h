// SPDX-License-Identifier: Apache-2.0
// Errors carry their context on lines of their own; where one line is an event, they go behind each
// other.
#pragma once

#include <string>
#include <string_view>

namespace cohort::internal {

// "lost\n  while pull\n" -> "lost; while pull".
std::string one_line(std::string_view text);

}  // namespace cohort::internal
