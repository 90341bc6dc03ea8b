// SPDX-License-Identifier: Apache-2.0
// What the synchronous strategies have in common: replicas on devices of this process, each of
// which holds a copy of every variable.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/input/input_host.h"
#include "cohort/strategy/strategy.h"

namespace cohort {

// The replicas of this worker run one after the other on the caller's thread. Thread-safe.
class COHORT_API SynchronousStrategy : public Strategy {
 public:
  std::string_view name() const final { return host_->strategy; }
  int num_replicas_in_sync() const final { return host_->num_replicas_in_sync(); }
  std::vector<std::string> worker_devices() const final;
  std::vector<std::string> parameter_devices() const final { return worker_devices(); }
  // Of this worker's replicas.
  const std::vector<Device>& devices() const { return host_->devices; }
  // 1 and 0 for a strategy of one process.
  int num_workers() const { return host_->num_workers(); }
  int worker() const { return host_->worker(); }

 protected:
  // `host` may leave `devices` and `check_context` out; they are taken from `devices`. Without
  // devices: all GPUs, or CPU:0 if there is none. Throws invalid_argument if a device is listed
  // twice, belongs to another task or does not exist (GPU:7 with two GPUs).
  SynchronousStrategy(InputHost host, const std::vector<std::string>& devices);

  void run_replicas(const std::function<void(ReplicaContext&)>& body) final;
  std::shared_ptr<const InputHost> input_host() final { return host_; }

 private:
  std::shared_ptr<const InputHost> host_;
};

}  // namespace cohort
