// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/replica_count.h"

#include "cohort/core/error.h"

namespace cohort::variable {
namespace {

thread_local int replica_count = 1;
thread_local int replica_here = 0;
thread_local bool is_loss_scaled = false;

}  // namespace

ReplicaCount::ReplicaCount(int count, int local_replica)
    : count_(replica_count, count),
      replica_(replica_here, local_replica),
      is_scaled_(is_loss_scaled, false) {}
int ReplicaCount::current() { return replica_count; }
int ReplicaCount::local_replica() { return replica_here; }
void ReplicaCount::note_scaled() { is_loss_scaled = true; }
bool ReplicaCount::is_scaled() { return is_loss_scaled; }

void check_one_replica(std::string_view call) {
  COHORT_CHECK(
      replica_count == 1, ErrorCode::unimplemented, "[", call,
      "] expected variables of the strategy, got others in a replica context of ", replica_count,
      " replicas, whose updates nothing reduces; make them with strategy.variable() or "
      "strategy.replicate(), or return compute_gradients() from run(), strategy.reduce() each "
      "gradient, and apply_gradients() outside of run()");
}

}  // namespace cohort::variable
