// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "cohort/core/nest.h"

namespace cohort::function {

// Returns the result of a call of a registered function: a single tensor alone, several as a tuple,
// none as an empty Nest.
inline Nest result_of_registered(std::vector<at::Tensor> outputs) {
  if (outputs.size() == 1) return std::move(outputs[0]);
  Nest::Items items;
  for (at::Tensor& output : outputs) items.push_back(std::move(output));
  return outputs.empty() ? Nest() : Nest::tuple(std::move(items));
}

}  // namespace cohort::function
