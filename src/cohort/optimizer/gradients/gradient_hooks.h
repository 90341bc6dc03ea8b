// SPDX-License-Identifier: Apache-2.0
// Gradients of a backward pass that are taken before it ends.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/variable/gradient_sink.h"

namespace cohort::internal {

// Returns a tensor whose backward pass, torch::autograd::grad() of it with these inputs, is that of
// `loss`, and gives `sink` the gradient of each input by its place in the list, as soon as nothing
// more is added to it. Gradients of inputs with has_left_out_hooks() are not given. `inputs` and
// `sink` must live until that pass has ended.
at::Tensor with_sink(const at::Tensor& loss, const std::vector<at::Tensor>& inputs,
                     GradientSink& sink);

// Whether a user has registered hooks on the tensor (register_hook()) that
// torch::autograd::grad() leaves out: LibTorch 2 calls them itself, LibTorch 1.13 calls only those
// of tensors whose gradient is not asked for.
bool has_left_out_hooks(const at::Tensor& tensor);

// Returns the gradient after the hooks of the tensor, called as backward() calls them: one after
// the other, without a graph. They may write into the gradient.
at::Tensor call_left_out_hooks(const at::Tensor& tensor, at::Tensor gradient);

}  // namespace cohort::internal
