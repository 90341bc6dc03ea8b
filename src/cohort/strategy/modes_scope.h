// SPDX-License-Identifier: Apache-2.0
// A step's train() and eval() end with it.
#pragma once

#include <vector>

#include "cohort/strategy/parameter_server_strategy.h"

namespace cohort {

// Puts the modes of all replicated modules back. Used with the strategy's lock_stand_ins().
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
