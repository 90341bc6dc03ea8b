// SPDX-License-Identifier: Apache-2.0
// The replicas that run the calling thread's code: strategies set them, updates check them.
#pragma once

#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/thread_value.h"

namespace cohort::variable {

// Sets this thread's number of replicas, and which of the local ones it is, while it lives. Used
// only from the thread that made it.
class COHORT_API ReplicaCount {
 public:
  explicit ReplicaCount(int count, int local_replica = 0);
  // 1 in cross-replica context and without a strategy.
  static int current();
  // 0 in cross-replica context and without a strategy.
  static int local_replica();

  // average_loss() and scale_regularization_loss() note that this replica scales its loss; warnings
  // ask whether they were called since the innermost scope began.
  static void note_scaled();
  static bool is_scaled();

 private:
  const internal::ScopedValue<int> count_;
  const internal::ScopedValue<int> replica_;
  const internal::ScopedValue<bool> is_scaled_;
};

// Throws unimplemented in a replica context of several replicas, for variables that are not made by
// their strategy: nothing reduces their updates. `call` is for the message, for example
// "optimizer.minimize".
COHORT_API void check_one_replica(std::string_view call);

}  // namespace cohort::variable
