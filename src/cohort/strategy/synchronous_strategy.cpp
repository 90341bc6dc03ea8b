// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/synchronous_strategy.h"

#include <torch/cuda.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/input/detail/input_host.h"

namespace cohort {
namespace {

// Every CPU:n exists, as in TensorFlow: several replicas may share the one CPU.
void check_is_there(const Device& device, std::string_view strategy) {
  if (device.type == "CPU") return;
  const int gpus = static_cast<int>(torch::cuda::device_count());
  const bool is_there = device.type == "GPU" && device.index < gpus;
  COHORT_CHECK(is_there, ErrorCode::invalid_argument, "[strategy.", strategy,
               "] expected devices that this process has, got ", device.to_string(),
               "; there are CPU:0, CPU:1, … and ",
               gpus == 0   ? std::string("no GPU")
               : gpus == 1 ? std::string("GPU:0")
                           : "GPU:0 to GPU:" + std::to_string(gpus - 1));
}

// Without names, returns all GPUs, or CPU:0. `strategy` is for messages.
std::vector<Device> replica_devices(const std::vector<std::string>& names,
                                    std::string_view strategy) {
  std::vector<Device> devices;
  for (const std::string& name : names) {
    const Device device = Device::parse(name);
    COHORT_CHECK(device.is_local(), ErrorCode::invalid_argument, "[strategy.", strategy,
                 "] expected devices of this process, got ", device.to_string());
    COHORT_CHECK(std::find(devices.begin(), devices.end(), device) == devices.end(),
                 ErrorCode::invalid_argument, "[strategy.", strategy,
                 "] expected each device once, got ", device.to_string(), " twice");
    check_is_there(device, strategy);
    devices.push_back(device);
  }
  if (!devices.empty()) return devices;
  const int gpus = static_cast<int>(torch::cuda::device_count());
  for (int i = 0; i < gpus; ++i) devices.push_back({.type = "GPU", .index = i});
  if (devices.empty()) devices.emplace_back();
  return devices;
}

// Throws inside a replica of a strategy other than the default one.
void check_outside_replicas(std::string_view method) {
  const ReplicaContext* replica = get_replica_context();
  COHORT_CHECK(replica == nullptr || &replica->strategy() == &default_strategy(),
               ErrorCode::invalid_argument, "[input.", method,
               "] expected cross-replica context, got replica ",
               replica->replica_id_in_sync_group(), " of '", replica->strategy().name(),
               "': draw from a distributed iterator outside run() and pass the element to run()");
}

}  // namespace

SynchronousStrategy::SynchronousStrategy(input::InputHost&& host,
                                         const std::vector<std::string>& devices) {
  host.devices = replica_devices(devices, host.strategy);
  host.check_context = check_outside_replicas;
  host_ = std::make_shared<const input::InputHost>(std::move(host));
}

std::string_view SynchronousStrategy::name() const { return host_->strategy; }
int SynchronousStrategy::num_replicas_in_sync() const { return host_->num_replicas_in_sync(); }
const std::vector<Device>& SynchronousStrategy::devices() const { return host_->devices; }
int SynchronousStrategy::num_workers() const { return host_->num_workers(); }
int SynchronousStrategy::worker() const { return host_->worker(); }

OneDeviceStrategy::OneDeviceStrategy(const std::string& device)
    : SynchronousStrategy(
          {.strategy = "one_device", .handles_partial_batches = false, .wraps_values = false},
          {device}) {}

MirroredStrategy::MirroredStrategy(const std::vector<std::string>& devices)
    : SynchronousStrategy({.strategy = "mirrored", .allows_per_replica = true}, devices) {}

std::vector<std::string> SynchronousStrategy::worker_devices() const {
  std::vector<std::string> names;
  for (const Device& device : host_->devices) names.push_back(device.to_string());
  return names;
}

int SynchronousStrategy::num_local_replicas() const { return host_->num_local_replicas(); }

void SynchronousStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  const int replicas = num_local_replicas();
  internal::in_replica_contexts(*this, host_->worker() * replicas, replicas, body);
}

}  // namespace cohort
