// SPDX-License-Identifier: Apache-2.0
// Which code of LibTorch called an operator.
#pragma once

#include <string_view>

namespace cohort::function {

// Whether the current operator was called through at::_ops::`op`::call by a function whose mangled
// name begins with `function`, with no code of another library in between. Also false where names
// were stripped.
bool is_called_by(std::string_view op, std::string_view function) noexcept;
// Whether some function on the stack has a mangled name that contains `function`.
bool is_called_inside(std::string_view function) noexcept;

}  // namespace cohort::function
