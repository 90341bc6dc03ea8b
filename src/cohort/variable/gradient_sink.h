// SPDX-License-Identifier: Apache-2.0
// Who wants gradients while the backward pass that computes them still runs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

#include "cohort/core/export.h"

namespace cohort {

// Made for one backward pass, whose gradients all go into one apply_updates() afterwards, with no
// other code of the user between; it lives until that has returned or thrown. Used only from the
// thread of the backward pass.
class COHORT_API GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The gradient of variable `i` is complete; undefined if there is none. Must not throw, and must
  // not change it.
  virtual void take(std::size_t i, const at::Tensor& gradient) = 0;
  // The backward pass has ended without an error.
  virtual void finish() = 0;
};

}  // namespace cohort
