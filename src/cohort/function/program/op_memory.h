// SPDX-License-Identifier: Apache-2.0
// Effects of operators on memory that their schemas do not declare.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <optional>
#include <string_view>

namespace cohort::function {

inline constexpr int kAlways = -1;

// For an argument that is written although the schema does not say so: the number of the bool
// argument that enables the write, or kAlways. nullopt where the argument is never written.
std::optional<int> hidden_write(std::string_view name, std::size_t argument);

// Whether result number `result` may share memory with an argument.
bool may_be_alias(const c10::OperatorHandle& op, std::size_t result);

}  // namespace cohort::function
