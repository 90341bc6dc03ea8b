// SPDX-License-Identifier: Apache-2.0
// Which code of LibTorch called an operator.
#pragma once

#include <string_view>

namespace cohort::function {

// The operator at hand was called through at::_ops::`op`::call by a function whose mangled name
// begins with `function`, with no code of another library in between. false also where names were
// stripped.
bool is_called_by(std::string_view op, std::string_view function) noexcept;
// Some function on the stack has a mangled name that contains `function`.
bool is_called_inside(std::string_view function) noexcept;

}  // namespace cohort::function
