// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/multi_worker_mirrored_strategy.h"

#include <utility>

#include "cohort/core/error.h"
#include "cohort/strategy/internal/synchronous.h"

namespace cohort {
namespace {

constexpr std::string_view kName = "multi_worker_mirrored";

}  // namespace

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(std::shared_ptr<WorkerGroup> group,
                                                         const MultiWorkerMirroredOptions& options)
    : host_(std::make_shared<const InputHost>(
          InputHost{.strategy = std::string(kName),
                    .devices = internal::replica_devices(options.devices, kName),
                    .group = std::move(group),
                    .check_context = internal::check_outside_replicas,
                    .timeout = options.timeout})) {
  COHORT_CHECK(host_->group != nullptr, ErrorCode::invalid_argument, "[strategy.", kName,
               "] expected a group of workers, got none");
}

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(const ClusterResolver&,
                                                         const MultiWorkerMirroredOptions&) {
  internal::throw_error(
      ErrorCode::unimplemented, "[strategy.", kName,
      "] workers in processes of their own need collectives, which are not there yet; use ",
      "InProcessWorkers, or MirroredStrategy on one machine");
}

std::vector<std::string> MultiWorkerMirroredStrategy::worker_devices() const {
  return internal::names_of(host_->devices);
}

void MultiWorkerMirroredStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  const int replicas = host_->num_local_replicas();
  internal::in_replica_contexts(*this, host_->worker() * replicas, replicas, body);
}

}  // namespace cohort
