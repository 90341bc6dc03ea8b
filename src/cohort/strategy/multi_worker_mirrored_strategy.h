// SPDX-License-Identifier: Apache-2.0
// Synchronous replicas on the devices of several workers, all of which run the same program
// (tf.distribute.MultiWorkerMirroredStrategy).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/collective/group.h"
#include "cohort/core/export.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {

struct MultiWorkerMirroredOptions {
  // The devices of this worker; all workers have the same number. Empty: all GPUs, or CPU:0.
  std::vector<std::string> devices = {};
  Duration timeout = std::chrono::minutes(5);  // for each wait for other workers
};

// Thread-safe.
class COHORT_API MultiWorkerMirroredStrategy final : public SynchronousStrategy {
 public:
  // For workers that exchange bytes through `group`, such as threads of one process
  // (InProcessWorkers).
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<collective::Group> group,
                                       const MultiWorkerMirroredOptions& options = {});
  // Throws unimplemented: workers in separate processes need collectives, which do not exist yet.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       const MultiWorkerMirroredOptions& options = {});
};

}  // namespace cohort
