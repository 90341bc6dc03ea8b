// SPDX-License-Identifier: Apache-2.0
// Makes text that may come from a peer safe to show. An error has its context on separate lines;
// where one line is one event, they are joined.
#pragma once

#include <string>
#include <string_view>

namespace cohort::internal {

// Escapes control characters, so that the text cannot move a terminal's cursor: "\x1b[31m" ->
// "\\x1b[31m". Newlines and tabs stay.
std::string printable(std::string_view text);
// The same, with the lines joined: "lost\n  while pull\n" -> "lost; while pull".
std::string one_line(std::string_view text);

}  // namespace cohort::internal
