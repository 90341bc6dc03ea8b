// SPDX-License-Identifier: Apache-2.0
// Warnings of losses whose gradients several replicas add, although each has that of the whole.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/mutex.h"

namespace cohort::internal {

// The warnings of one optimizer. Warns once of a loss that is a mean of a replica's rows, once of a
// step whose loss may be one, and once if all local replicas have the same losses in the first
// steps, so that they seem to have the same rows. Looks only at the first steps, and reads the
// values of losses on CPUs in the first three. Thread-safe.
class COHORT_API LossWarnings {
 public:
  // In a replica, before its gradients are computed. Does nothing with one replica. Returns false
  // if the graph does not tell whether the loss is a mean (LossForm::unknown).
  bool look_at(const at::Tensor& loss);
  // In a replica, before a `call` ("step") with gradients of a loss of which that is not known.
  // Warns once unless the program has scaled it (ReplicaCount::is_scaled()).
  void look_at_step(std::string_view call, bool is_scaled);

 private:
  void compare(const at::Tensor& loss) COHORT_REQUIRES(mutex_);

  std::atomic<std::int64_t> calls_ = 0;
  std::atomic<bool> has_warned_of_step_ = false;
  Mutex mutex_;
  bool has_warned_of_mean_ COHORT_GUARDED_BY(mutex_) = false;
  bool has_compared_ COHORT_GUARDED_BY(mutex_) = false;
  int equal_steps_ COHORT_GUARDED_BY(mutex_) = 0;
  // The losses of the step that runs, by local replica, whose numbers begin at 0.
  std::vector<double> losses_ COHORT_GUARDED_BY(mutex_);
  std::vector<bool> are_known_ COHORT_GUARDED_BY(mutex_);
};

}  // namespace cohort::internal
