// SPDX-License-Identifier: Apache-2.0
// Synchronous replicas on the devices of one process (tf.distribute.MirroredStrategy).
//
//   MirroredStrategy strategy({"CPU:0", "CPU:1"});
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/strategy.h"

namespace cohort {

// Replicas run one after the other on the caller's thread. Thread-safe.
class COHORT_API MirroredStrategy final : public Strategy {
 public:
  // Without devices: all GPUs, or CPU:0 if there is none. Throws invalid_argument if a device is
  // listed twice, belongs to another task or does not exist (GPU:7 with two GPUs).
  explicit MirroredStrategy(const std::vector<std::string>& devices = {});

  std::string_view name() const override { return "mirrored"; }
  int num_replicas_in_sync() const override { return host_->num_replicas_in_sync(); }
  std::vector<std::string> worker_devices() const override;
  std::vector<std::string> parameter_devices() const override { return worker_devices(); }
  const std::vector<Device>& devices() const { return host_->devices; }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  std::shared_ptr<const InputHost> input_host() override { return host_; }

 private:
  std::shared_ptr<const InputHost> host_;
};

}  // namespace cohort
