// SPDX-License-Identifier: Apache-2.0
// Where the tensors of a checkpoint go.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "cohort/core/tensor_spec.h"

namespace cohort::checkpoint {

// Used only from one thread.
class TensorSink {
 public:
  virtual ~TensorSink() = default;
  // Rows of the tensor `name`, whose spec as a whole this is.
  virtual void write(const std::string& name, const TensorSpec& spec, std::int64_t first_row,
                     at::Tensor rows) = 0;
  void write(const std::string& name, at::Tensor tensor) {
    const TensorSpec spec = TensorSpec::of(tensor);
    write(name, spec, 0, std::move(tensor));
  }
  // Rows of a tensor that has as many as are appended; `rows` may be empty.
  virtual void append(const std::string& name, at::Tensor rows) = 0;
};

}  // namespace cohort::checkpoint
