// SPDX-License-Identifier: Apache-2.0
// State beside variables that each replica of this process has for itself.
#pragma once

#include <string>

#include "cohort/variable/attached_states.h"

namespace cohort::internal {

// An optimizer of LibTorch in each replica. Used while no step runs.
class StateOfReplicas : public AttachedState {
 public:
  // Where the states of the replicas differ, for a message; empty if they do not.
  virtual std::string difference() const = 0;
};

}  // namespace cohort::internal
