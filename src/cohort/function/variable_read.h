// SPDX-License-Identifier: Apache-2.0
// The graph of a value that was read from a variable (tf.Variable.read_value() inside a tape).
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "cohort/core/export.h"

namespace cohort::function {

// Returns `copy`, a new tensor that nobody else has, with a graph: a gradient of it is a gradient
// of `variable`. Without a graph if gradients are disabled or `variable` requires none. Records no
// operator in a trace. Thread-safe.
COHORT_API at::Tensor with_gradient_of(const at::Tensor& variable, at::Tensor copy);

// Whether the tensor has a graph, and each path of it ends at such a copy: the caller has read
// values of variables and computed with no parameter itself. Thread-safe.
COHORT_API bool is_computed_from_reads(const at::Tensor& tensor);

// The leaves that a gradient of the tensor reaches, except through such copies; none for a tensor
// without a graph. Thread-safe.
COHORT_API std::vector<at::Tensor> leaves_of(const at::Tensor& tensor);

}  // namespace cohort::function
