// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/gradients/table_gradients.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/cat.h>

#include <utility>

#include "cohort/variable/row_gradient.h"

namespace cohort::optimizer {

void TableGradients::add_inputs(const Variable& table, std::vector<at::Tensor>& inputs) {
  for (VariableImpl::LookedUp& each : table.impl()->looked_up()) {
    keys_.emplace(inputs.size(), std::move(each.keys));
    inputs.push_back(std::move(each.rows));
  }
}

bool TableGradients::take(std::size_t input, const Variable& table, at::Tensor& sum,
                          const at::Tensor& gradient) const {
  const auto found = keys_.find(input);
  if (found == keys_.end()) return false;
  at::Tensor keys = found->second, rows = gradient.contiguous();
  if (sum.defined()) {
    const variable::GradientRows before = variable::rows_of(sum);
    keys = at::cat({before.ids.squeeze(0), keys});
    rows = at::cat({before.values, rows});
  }
  sum = variable::row_gradient(keys, rows, *table.spec().sizes);
  return true;
}

}  // namespace cohort::optimizer
