// SPDX-License-Identifier: Apache-2.0
// The effect of train() and eval() inside a step ends with the step.
#pragma once

#include <vector>

#include "cohort/parameter_server_strategy/parameter_server_home.h"

namespace cohort {

// Restores the modes of all replicated modules when it is destroyed. The caller holds
// lock_stand_ins().
class ModesScope {
 public:
  explicit ModesScope(const detail::ParameterServerHome& home)
      : home_(home), modes_(home.module_modes()) {}
  ~ModesScope() { restore(); }
  ModesScope(const ModesScope&) = delete;
  ModesScope& operator=(const ModesScope&) = delete;
  void restore() const { home_.set_module_modes(modes_); }

 private:
  const detail::ParameterServerHome& home_;
  const std::vector<std::vector<bool>> modes_;
};

}  // namespace cohort
