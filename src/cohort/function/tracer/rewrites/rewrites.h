// SPDX-License-Identifier: Apache-2.0
// Replaces operators of ordinary models that read tensor data on the host, or whose backward pass
// does, by operators that do the same work without such reads. They are called instead of the
// original, above autograd, so that they are recorded and differentiated like the body's own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string_view>

namespace cohort::function {

// Does the work of `op`, whose arguments are on `stack`, by operators that can be recorded, and
// leaves the results there. `inside`: the composite operator that calls `op`, or empty. Returns
// false, with the stack unchanged, if there is nothing to rewrite.
bool rewrite(const c10::OperatorHandle& op, std::string_view inside, torch::jit::Stack& stack);

// Whether the op is resize_ or resize_as_.
bool resizes_argument(std::string_view name);

// Whether to record a composite as one operator: it branches on tensor data inside, but its results
// have fixed shapes, and no gradient passes through it.
bool is_recorded_whole(const c10::OperatorHandle& op);

}  // namespace cohort::function
