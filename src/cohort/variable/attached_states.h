// SPDX-License-Identifier: Apache-2.0
// The states of the optimizers of a home's variables.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/amortized_sweep.h"
#include "cohort/core/export.h"
#include "cohort/core/mutex.h"
#include "cohort/variable/attached_state.h"
#include "cohort/variable/variable_state.h"

namespace cohort {

// Thread-safe.
class COHORT_API AttachedStates {
 public:
  void add(const std::shared_ptr<AttachedState>& state);
  std::vector<std::shared_ptr<AttachedState>> all() const;
  // For messages and comparisons of workers: the rule, and a number if there are optimizers of this
  // rule for the same variables that were made before. Workers may have other names for it.
  std::string step_of(const SlotKey& key) const;
  // AttachedState::alike_in_steps() of all.
  std::string alike_in_steps(std::string_view optimizer) const;

 private:
  mutable Mutex mutex_;
  std::vector<std::weak_ptr<AttachedState>> states_ COHORT_GUARDED_BY(mutex_);
  internal::AmortizedSweep sweep_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort
