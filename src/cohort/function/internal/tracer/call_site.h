// SPDX-License-Identifier: Apache-2.0
// Where in the user's code an operator was called.
#pragma once

#include <string>

namespace cohort::function {

// Lines "\n    at FUNCTION at FILE:LINE", innermost first, of the calling code outside LibTorch and
// the tracer: needs addr2line and debug information; else one line with module and offset.
// `outermost`: the frame address of the tracer's first entry on this thread, or nullptr. Never
// throws; empty where nothing is known.
std::string call_site(const void* outermost) noexcept;

}  // namespace cohort::function
