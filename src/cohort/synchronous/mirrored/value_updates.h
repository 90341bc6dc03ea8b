// SPDX-License-Identifier: Apache-2.0
// Steps of update rules, as run() makes them in a merge (mirrored_updates.cpp), and steps of
// function() in a meeting (traced/step_updates.cpp).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/replicas/reduction.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/variable/variable.h"
#include "cohort/variable/variable_state.h"

namespace cohort::internal {

class MirroredHome;

// `sums`: of each variable the sum of the gradients over the replicas of this worker, as
// WorkerGradients::sum() takes it; it becomes the sum over all workers, which make this call.
// `what`: AttachedStates::step_of(). Returns true if the step is complete then: with
// shard_optimizer_state each worker has updated its share, and all have the new values.
bool sum_over_workers(MirroredHome& home, const SlotKey& key, std::string_view what,
                      const std::vector<Variable>& variables, std::vector<Reduction::Parts>& sums,
                      std::span<const double> hyper);
// The gradient of each variable, undefined if no replica has one. Throws invalid_argument if all
// are.
std::vector<at::Tensor> gradients_of_sums(const std::vector<Reduction::Parts>& sums,
                                          const std::vector<Variable>& variables);

// The call of sums for clip_by_global_norm(), for messages.
inline constexpr std::string_view kClipCall = "optimizer.clip_by_global_norm";

// Throws unimplemented for a component, which a replica cannot update.
void check_is_whole(const Variable& variable);

// A step of an update rule for one value of a variable.
struct ValueUpdate {
  MirroredVariable& variable;
  std::size_t value;
  at::Tensor gradient;  // on the value's device, from prepared_gradient()
  std::span<const double> hyper;
  bool is_of_all = false;  // the other values are equal, and get the result of this one
};
// An error in one value leaves all of them unchanged, unless a GPU has no memory for an update.
void apply_values(const SlotKey& key, const std::vector<ValueUpdate>& updates);

}  // namespace cohort::internal
