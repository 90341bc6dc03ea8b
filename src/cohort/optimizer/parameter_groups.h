// SPDX-License-Identifier: Apache-2.0
// The groups of an optimizer's variables (ParameterGroup), and the hyperparameters of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cohort/optimizer/optimizer.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/update_rule.h"
#include "cohort/variable/variable_state.h"

namespace cohort::optimizer {

// Immutable after add_to(), and thread-safe then.
class HyperOfGroups {
 public:
  // Throws as the constructors of optimizers do.
  HyperOfGroups(std::vector<ParameterGroup> groups, const variable::UpdateRule& rule,
                const std::vector<Variable>& variables);

  // For SlotKey; nullptr if there are no groups.
  const std::shared_ptr<const HyperGroups>& by_variable() const { return by_variable_; }
  // `hyper` has the tensors of the optimizer itself, of which the first follows `learning_rate`.
  // Appends those of the groups (HyperGroups), which are the same tensors where a group has no
  // number of its own.
  void add_to(std::vector<at::Tensor>& hyper, UpdateCounter& learning_rate);
  // Replaces the learning rates by those of another update of one step.
  void use_update(std::size_t index, std::vector<at::Tensor>& hyper,
                  UpdateCounter& learning_rate) const;
  // "'*.bias': learning_rate * 0.1, weight_decay 0; …", for messages, and to be saved; empty: there
  // are none.
  std::string text() const;

 private:
  const std::size_t size_;   // the number of the rule's hyperparameters
  const std::size_t decay_;  // the place of weight_decay among them
  std::vector<ParameterGroup> groups_;
  std::vector<std::size_t> derived_;  // of the counter, by group; 0: the optimizer's learning rate
  std::shared_ptr<const HyperGroups> by_variable_;
};

}  // namespace cohort::optimizer
