// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/mirrored_strategy.h"

#include "cohort/strategy/internal/synchronous.h"

namespace cohort {

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices)
    : host_(std::make_shared<const InputHost>(
          InputHost{.strategy = "mirrored",
                    .devices = internal::replica_devices(devices, "mirrored"),
                    .allows_per_replica = true,
                    .check_context = internal::check_outside_replicas})) {}

std::vector<std::string> MirroredStrategy::worker_devices() const {
  return internal::names_of(host_->devices);
}

void MirroredStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  internal::in_replica_contexts(*this, 0, host_->num_local_replicas(), body);
}

}  // namespace cohort
