// SPDX-License-Identifier: Apache-2.0
// The gradients of tables in a backward pass. A loss depends on a table by the rows that the step
// has looked up, so these are the inputs of the pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <map>
#include <vector>

#include "cohort/variable/variable.h"

namespace cohort::optimizer {

// Used only while one pass is made.
class TableGradients {
 public:
  // Adds the rows that the step has looked up in the table.
  void add_inputs(const Variable& table, std::vector<at::Tensor>& inputs);
  bool is_empty() const { return keys_.empty(); }
  // If this input is rows of `table`, adds their gradient to `sum`, which becomes a row gradient: a
  // key that comes in several lookups comes several times in it. Returns false for other inputs.
  bool take(std::size_t input, const Variable& table, at::Tensor& sum,
            const at::Tensor& gradient) const;

 private:
  std::map<std::size_t, at::Tensor> keys_;  // by input
};

}  // namespace cohort::optimizer
