// SPDX-License-Identifier: Apache-2.0
// Which of a run's outputs share memory with tensors that are not the run's own.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

namespace cohort::function {

// The time grows with the number of tensors, not with the product of both numbers.
// Thread-compatible.
class OutputMemory {
 public:
  // Undefined tensors share nothing.
  explicit OutputMemory(std::span<const at::Tensor> outputs);

  // Notes that this tensor is not the run's own.
  void note_foreign(const at::Tensor& tensor);
  bool is_foreign(const at::Tensor& output) const;

 private:
  struct Entry {
    const void* memory;
    bool is_foreign;
  };
  std::vector<Entry>::const_iterator find(const at::Tensor& tensor) const;

  std::vector<Entry> entries_;  // sorted
};

}  // namespace cohort::function
