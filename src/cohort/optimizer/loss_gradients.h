// SPDX-License-Identifier: Apache-2.0
// The gradients that optimizers take of a loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_home.h"

namespace cohort::internal {

// Throws invalid_argument if loss is not a floating-point scalar with a graph. `variables`: those
// of the optimizer, for messages. If several replicas add their gradients, some may have a loss
// without a graph, as one whose rows do not count: returns false then.
COHORT_API bool check_loss(const at::Tensor& loss, std::span<const Variable> variables);
// For a message: what no replica may have.
COHORT_API std::string no_gradient_text(std::span<const Variable> variables);

// One gradient for each input, which are tensors of these variables; undefined if loss does not
// depend on it. Hooks that are registered on an input change its gradient, as in backward(). Keeps
// the graph, since another optimizer may have the other variables of this loss. `sink`: gets each
// gradient while the others are computed; that of an input with hooks, after them. Throws
// invalid_argument if there are no inputs, and if loss depends on none of them, unless other
// replicas may have gradients.
COHORT_API std::vector<at::Tensor> loss_gradients(const at::Tensor& loss,
                                                  const std::vector<at::Tensor>& inputs,
                                                  std::span<const Variable> variables,
                                                  GradientSink* sink = nullptr);

// How many hooks are registered on the tensor.
COHORT_API std::size_t num_hooks(const at::Tensor& tensor);

// Whether this thread calls hooks of an input for loss_gradients(), which adds nothing to grad().
COHORT_API bool is_in_left_out_hooks();

// Whether no other tensor, hook or saved value has the gradient or its memory, and LibTorch has
// allocated that: the memory of a gradient that a function in C++ has made may be the user's.
COHORT_API bool is_only_user(const at::Tensor& gradient);

}  // namespace cohort::internal
