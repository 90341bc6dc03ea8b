// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/detail/replica_count.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::variable {
namespace {

thread_local int replica_count = 1;

}  // namespace

ReplicaCount::ReplicaCount(int count) : previous_(std::exchange(replica_count, count)) {}
ReplicaCount::~ReplicaCount() { replica_count = previous_; }
int ReplicaCount::current() { return replica_count; }

void check_one_replica(std::string_view call) {
  COHORT_CHECK(
      replica_count == 1, ErrorCode::unimplemented, "[", call,
      "] expected a strategy of one replica, got a replica context of ", replica_count,
      " replicas, whose updates would be applied one after the other: they are not reduced "
      "yet; return compute_gradients() from run(), strategy.reduce() each gradient, and "
      "apply_gradients() outside of run(), or use one replica or parameter servers");
}

}  // namespace cohort::variable
