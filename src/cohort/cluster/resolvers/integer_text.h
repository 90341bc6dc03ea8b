// SPDX-License-Identifier: Apache-2.0
// Text of a configuration as Python would read it, since TF_CONFIG was made for Python.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cohort::internal {

// Python's int(text), which allows surrounding whitespace, a sign, leading zeros and single
// underscores between digits. nullopt where Python raises ValueError, or beyond 64 bits.
std::optional<std::int64_t> integer_of_text(std::string_view text);

// `text` in quotes for a message, shortened in the middle when long.
std::string quote(std::string_view text);

}  // namespace cohort::internal
