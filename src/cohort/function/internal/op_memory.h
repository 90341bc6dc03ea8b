// SPDX-License-Identifier: Apache-2.0
// What operators do with memory though their schemas do not say so.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstddef>
#include <optional>
#include <string_view>

namespace cohort::function {

inline constexpr int kAlways = -1;

// Of an argument that the schema does not mark as written: the number of the argument without which
// (false) it is left alone, or kAlways; nothing where it is never written.
std::optional<int> hidden_write(std::string_view name, std::size_t argument);

// Result number `result` may be memory of an argument.
bool may_be_alias(const c10::OperatorHandle& op, std::size_t result);

}  // namespace cohort::function
