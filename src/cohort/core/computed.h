// SPDX-License-Identifier: Apache-2.0
// Tensors that are the lazy form of conj() or neg(): their memory has other numbers, which a flag
// of the tensor says.
#pragma once

#include <ATen/core/Tensor.h>

namespace cohort {

inline bool is_lazy(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg(); }

// The tensor itself, or a copy with computed values if it is lazy. For code that reads memory.
inline at::Tensor computed(const at::Tensor& tensor) {
  return tensor.defined() && is_lazy(tensor) ? tensor.resolve_conj().resolve_neg() : tensor;
}

}  // namespace cohort
