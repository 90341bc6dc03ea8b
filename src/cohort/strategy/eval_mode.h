// SPDX-License-Identifier: Apache-2.0
// Eval mode for a step that does not set it itself.
#pragma once

#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/replicated.h"

namespace cohort::internal {

// While it exists, a replicated module that this thread uses for the first time gets eval mode
// (torch::nn::Module::eval()), which ends with the step as train() and eval() of the step itself
// do; a call of these after that stays in effect. Scopes nest. Used only from its thread, inside of
// one step.
class COHORT_API EvalModeScope {
 public:
  EvalModeScope();
  ~EvalModeScope();
  EvalModeScope(const EvalModeScope&) = delete;
  EvalModeScope& operator=(const EvalModeScope&) = delete;

  // For ModuleHome::note_module_use(), after it has kept the mode that the module has now.
  static void note_use(const ModuleUse& module);

 private:
  EvalModeScope* const outer_;
  std::vector<const ModuleUse*> seen_;
};

}  // namespace cohort::internal
