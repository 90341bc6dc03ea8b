// SPDX-License-Identifier: Apache-2.0
// Formats values as the page's Python shows them.
#pragma once

#include <cstdio>

#include "../distributed_input/numpy_text.h"

namespace page {

// A tensor: <tf.Tensor: shape=(1,), dtype=int64, numpy=array([0])>
inline std::string repr(const at::Tensor& tensor) {
  std::string text = "<tf.Tensor: shape=" + guide::shape(tensor) + guide::kind(tensor) + ", numpy=";
  if (tensor.dim() == 0) return text + guide::number(tensor, guide::Whole::scalar) + ">";
  const std::string start = "array(";
  // numpy names the dtypes that it would not choose itself.
  const bool is_default = tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kDouble;
  return text + (tensor.dim() > 1 ? "\n" : "") + start +
         guide::rows(tensor, guide::Whole::array, ",", start.size()) +
         (is_default ? "" : guide::kind(tensor)) + ")>";
}

// PerReplica:{ 0: …, 1: … }, one line for each replica
inline std::string repr(const cohort::PerReplica<at::Tensor>& value) {
  std::string text = "PerReplica:{\n";
  for (const std::size_t i : c10::irange(value.size())) {
    text += "  " + std::to_string(i) + ": " + repr(value[i]);
    text += i + 1 < value.size() ? ",\n" : "\n";
  }
  return text + "}";
}

// A variable: <tf.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>
inline std::string repr(const cohort::Variable& variable) {
  const at::Tensor value = variable.read().detach();
  return "<tf.Variable '" + variable.name() + ":0' shape=" + guide::shape(value) +
         " dtype=" + cohort::dtype_name(value.scalar_type()) +
         ", numpy=" + guide::rows(value, guide::Whole::scalar, ",") + ">";
}

inline void print(const std::string& text) { std::printf("%s\n", text.c_str()); }

}  // namespace page
