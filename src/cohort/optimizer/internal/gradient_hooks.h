// SPDX-License-Identifier: Apache-2.0
// Gradients of a backward pass that are taken before it ends.
#pragma once

#include <ATen/core/Tensor.h>

#include "cohort/variable/detail/gradient_sink.h"

namespace cohort::internal {

// Returns a tensor whose backward pass, torch::autograd::grad() of it with a list of inputs, is
// that of `loss`, and gives `sink` the gradient of each input by its place in the list, as soon as
// nothing more is added to it. `sink` must live until that pass has ended.
at::Tensor with_sink(const at::Tensor& loss, GradientSink& sink);

}  // namespace cohort::internal
