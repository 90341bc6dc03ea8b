// SPDX-License-Identifier: Apache-2.0
// How many replicas the calling thread's code is one of: strategies say it, updates ask for it.
#pragma once

#include <string_view>

#include "cohort/core/export.h"

namespace cohort::variable {

// Sets this thread's number of replicas until the object goes. Used only from the thread that made
// it.
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

// Throws unimplemented in a replica context of several replicas: nothing reduces their updates yet.
// `call` is for the message, as "optimizer.minimize".
COHORT_API void check_one_replica(std::string_view call);

}  // namespace cohort::variable
