// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/eval_mode.h"

#include <algorithm>

namespace cohort::internal {
namespace {

thread_local EvalModeScope* eval_mode_here = nullptr;

}  // namespace

EvalModeScope::EvalModeScope() : outer_(eval_mode_here) { eval_mode_here = this; }
EvalModeScope::~EvalModeScope() { eval_mode_here = outer_; }

void EvalModeScope::note_use(const ModuleUse& module) {
  if (eval_mode_here == nullptr) return;
  std::vector<const ModuleUse*>& seen = eval_mode_here->seen_;
  if (std::ranges::find(seen, &module) != seen.end()) return;
  seen.push_back(&module);
  module.modes.write(std::vector<bool>(module.modes.read().size(), false));
}

}  // namespace cohort::internal
