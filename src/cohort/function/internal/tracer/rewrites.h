// SPDX-License-Identifier: Apache-2.0
// Operators of ordinary models that look at tensor data on the host, or whose backward pass does,
// and the operators that do the same work without. They are called in the place of the original,
// above autograd, so that they are recorded and differentiated like the body's own.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <array>
#include <string_view>

namespace cohort::function {

// Does the work of `op`, whose arguments lie on `stack`, by operators that can be recorded, and
// leaves its results there. `inside`: the composite operator that calls it, or nothing. false:
// there is nothing to rewrite, and the stack is as it was.
bool rewrite(const c10::OperatorHandle& op, std::string_view inside, torch::jit::Stack& stack);

// resize_ and its kin.
bool resizes_argument(std::string_view name);

// A composite that decides by tensor data inside, but whose results have fixed shapes: recorded as
// one operator where no gradient goes through it.
bool is_recorded_whole(const c10::OperatorHandle& op);

// Operators whose rewritten form, or its gradient, adds up in another order than LibTorch's own.
// They agree with the eager program to 1e-6; everything else agrees bit for bit.
inline constexpr auto kRoundedRewrites =
    std::to_array<std::string_view>({"aten::cross_entropy_loss", "aten::equal", "aten::index_put",
                                     "aten::index_put_", "aten::masked_fill", "aten::masked_fill_",
                                     // With LibTorch 2 alone.
                                     "aten::nanquantile", "aten::quantile"});

}  // namespace cohort::function
