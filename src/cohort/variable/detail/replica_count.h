// SPDX-License-Identifier: Apache-2.0
// The number of replicas that run the calling thread's code: strategies set it, updates check it.
#pragma once

#include <string_view>

#include "cohort/core/export.h"

namespace cohort::variable {

// Sets this thread's number of replicas while it lives. Used only from the thread that made it.
class COHORT_API ReplicaCount {
 public:
  explicit ReplicaCount(int count);
  ~ReplicaCount();
  ReplicaCount(const ReplicaCount&) = delete;
  ReplicaCount& operator=(const ReplicaCount&) = delete;
  // 1 in cross-replica context and without a strategy.
  static int current();

 private:
  const int previous_;
};

// Throws unimplemented in a replica context of several replicas, since nothing reduces their
// updates yet. `call` is for the message, for example "optimizer.minimize".
COHORT_API void check_one_replica(std::string_view call);

}  // namespace cohort::variable
