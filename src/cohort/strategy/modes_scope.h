// SPDX-License-Identifier: Apache-2.0
// The effect of train() and eval() inside a step ends with the step.
#pragma once

#include <vector>

#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort {

// Restores the modes of all replicated modules when it is destroyed. The caller holds the
// strategy's lock_stand_ins().
class ModesScope {
 public:
  explicit ModesScope(const ParameterServerStrategy& strategy)
      : strategy_(strategy), modes_(strategy.module_modes()) {}
  ~ModesScope() { restore(); }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;
  void restore() const { strategy_.set_module_modes(modes_); }

 private:
  const ParameterServerStrategy& strategy_;
  const std::vector<std::vector<bool>> modes_;
};

}  // namespace cohort
