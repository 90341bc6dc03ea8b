// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/one_device_strategy.h"

#include "cohort/strategy/internal/synchronous.h"

namespace cohort {

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : host_(std::make_shared<const InputHost>(
          InputHost{.strategy = "one_device",
                    .devices = internal::replica_devices({device}, "one_device"),
                    .handles_partial_batches = false,
                    .wraps_values = false,
                    .check_context = internal::check_outside_replicas})) {}

std::vector<std::string> OneDeviceStrategy::worker_devices() const {
  return internal::names_of(host_->devices);
}

void OneDeviceStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  internal::in_replica_context(*this, 0, body);
}

}  // namespace cohort
