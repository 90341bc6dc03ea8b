// SPDX-License-Identifier: Apache-2.0
// Texts that others may have written, as people read them. Errors carry their context on lines of
// their own; where one line is an event, they go behind each other.
#pragma once

#include <string>
#include <string_view>

namespace cohort::internal {

// Nothing in it moves a terminal's cursor: "\x1b[31m" -> "\\x1b[31m". Line ends and tabs stay.
std::string printable(std::string_view text);
// The same in one line: "lost\n  while pull\n" -> "lost; while pull".
std::string one_line(std::string_view text);

}  // namespace cohort::internal
