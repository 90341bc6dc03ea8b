// SPDX-License-Identifier: Apache-2.0
// A scheduled step that runs in the coordinator's own process (CoordinatorOptions::run_eagerly).
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "cohort/core/export.h"

namespace cohort {

class VariableImpl;

// Stands while one runs. Variables of parameter servers then keep their stand-ins as their servers
// have them: an update is followed by a read, and what the step wrote in place is assigned. Used
// only from the thread that made it.
class COHORT_API EagerStep {
 public:
  EagerStep();
  ~EagerStep();
  EagerStep(const EagerStep&) = delete;
  EagerStep& operator=(const EagerStep&) = delete;
  // That of this thread, or nullptr.
  static EagerStep* current();

  // The server has this value, and so has the variable's stand-in: a tensor that nobody writes.
  void note(const VariableImpl& variable, at::Tensor value);
  // The stand-in has other bits than note() was given.
  bool has_written(const VariableImpl& variable) const;

 private:
  EagerStep* const outer_;
  std::unordered_map<const VariableImpl*, at::Tensor> values_;
};

}  // namespace cohort
