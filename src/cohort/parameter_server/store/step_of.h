// SPDX-License-Identifier: Apache-2.0
// Steps of update rules for the tests of a store.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/core/effect_handler.h"
#include "cohort/optimizer/optimizer.h"
#include "cohort/rpc/messages.h"

namespace cohort::parameter_server {

// One step with all hyperparameters 0.5. `ids`: of the gradient's rows; undefined: it is dense.
inline rpc::Effect step_of(std::uint64_t variable, std::string_view rule, at::Tensor gradient,
                           at::Tensor ids = {}) {
  const variable::UpdateRule& found = optimizer::update_rule_of(rule);
  std::vector<double> hyper(found.hyperparameter_names().size(), 0.5);
  rpc::Effect effect = cohort::internal::apply_effect({rule, rule, ids.defined()}, std::move(hyper),
                                                      std::move(gradient));
  effect.variable = variable;
  effect.row_ids = std::move(ids);
  return effect;
}

}  // namespace cohort::parameter_server
