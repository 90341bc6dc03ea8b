// SPDX-License-Identifier: Apache-2.0
// All variables and the only replica on one device (tf.distribute.OneDeviceStrategy). Use it to try
// a program that is written for many replicas.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/strategy/strategy.h"

namespace cohort {

// Thread-safe.
class COHORT_API OneDeviceStrategy final : public Strategy {
 public:
  explicit OneDeviceStrategy(const std::string& device = "CPU:0");

  std::string_view name() const override { return "one_device"; }
  int num_replicas_in_sync() const override { return 1; }
  std::vector<std::string> worker_devices() const override;
  std::vector<std::string> parameter_devices() const override { return worker_devices(); }

 protected:
  void run_replicas(const std::function<void(ReplicaContext&)>& body) override;
  std::shared_ptr<const InputHost> input_host() override { return host_; }

 private:
  std::shared_ptr<const InputHost> host_;
};

}  // namespace cohort
