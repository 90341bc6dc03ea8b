// SPDX-License-Identifier: Apache-2.0
// Synchronous replicas on the devices of several workers, all of which run the same program
// (tf.distribute.MultiWorkerMirroredStrategy).
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/export.h"
#include "cohort/input/step_agreement.h"
#include "cohort/strategy/strategy.h"

namespace cohort {

struct MultiWorkerMirroredOptions {
  // The devices of this worker; all workers have the same number. Empty: all GPUs, or CPU:0.
  std::vector<std::string> devices = {};
  Duration timeout = std::chrono::minutes(5);  // for each wait for other workers
};

// Thread-safe.
class COHORT_API MultiWorkerMirroredStrategy final : public Strategy {
 public:
  // For workers that exchange bytes through `group`, such as threads of one process
  // (InProcessWorkers).
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<WorkerGroup> group,
                                       const MultiWorkerMirroredOptions& options = {});
  // Throws unimplemented: workers in separate processes need collectives, which do not exist yet.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       const MultiWorkerMirroredOptions& options = {});

  std::string_view name() const override { return "multi_worker_mirrored"; }
  int num_replicas_in_sync() const override { return host_->num_replicas_in_sync(); }
  std::vector<std::string> worker_devices() const override;
  std::vector<std::string> parameter_devices() const override { return worker_devices(); }
  int num_workers() const { return host_->num_workers(); }
  int worker() const { return host_->worker(); }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  std::shared_ptr<const InputHost> input_host() override { return host_; }

 private:
  std::shared_ptr<const InputHost> host_;
};

}  // namespace cohort
