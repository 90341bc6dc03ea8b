// SPDX-License-Identifier: Apache-2.0
// Synchronous strategies: replicas on devices of this process. They distribute input, run functions
// on each replica, and reduce and gather values. Their variables have a component for each replica,
// which optimizers keep equal: they sum the gradients of all replicas before each update.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/strategy/strategy.h"

namespace cohort {

class ClusterResolver;  // cluster/cluster_resolver.h
namespace collective {
class Group;  // collective/group.h
}
namespace input {
struct InputHost;  // input/detail/input_host.h
}

// The replicas of this worker run at the same time, each on a thread (Strategy::run()).
// Thread-safe, with several workers only as MultiWorkerMirroredStrategy says.
class COHORT_API SynchronousStrategy : public Strategy {
 public:
  ~SynchronousStrategy() override;
  std::string_view name() const final;
  int num_replicas_in_sync() const final;
  std::vector<std::string> worker_devices() const final;
  std::vector<std::string> parameter_devices() const final { return worker_devices(); }
  // The devices of this worker's replicas.
  const std::vector<Device>& devices() const;
  // The number of workers and the index of this one; 1 and 0 for a strategy of one process.
  int num_workers() const;
  int worker() const;

 protected:
  // `host` needs no `devices` and no `check_context`; they are taken from `devices`. An empty list
  // means all GPUs, or CPU:0 if there are none. Throws invalid_argument if a device is listed
  // twice, belongs to a different task or does not exist (GPU:7 with two GPUs).
  SynchronousStrategy(input::InputHost&& host, const std::vector<std::string>& devices);

  // These throw unimplemented with several workers, whose values nothing makes equal yet, and on
  // GPUs. In a replica context, all replicas make the call; they get the same variable, with the
  // first replica's initial value. Throws failed_precondition if they give it different names.
  Variable create_variable(std::string name, const at::Tensor& initial_value,
                           const VariableOptions& options) final;
  Variable create_variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                           const VariableOptions& options) final;
  std::uint64_t module_seed() const final { return 0; }
  int num_modules() const final { return num_local_replicas(); }
  internal::ModuleVariables place_module(std::string_view name,
                                         std::vector<internal::ModuleCopy> copies) final;
  int num_local_replicas() const final;
  void run_replicas(const std::function<void(ReplicaContext&)>& body) final;
  std::shared_ptr<const input::InputHost> input_host() final { return host_; }

 private:
  void check_has_variables(std::string_view name, std::string_view method) const;

  std::shared_ptr<const input::InputHost> host_;
  std::unique_ptr<internal::ReplicaThreads> threads_;
  std::shared_ptr<internal::MirroredHome> home_;
};

// One replica on one device (tf.distribute.OneDeviceStrategy). Use it to try a program that is
// written for many replicas. Thread-safe.
class COHORT_API OneDeviceStrategy final : public SynchronousStrategy {
 public:
  // Throws invalid_argument for a device that this process does not have.
  explicit OneDeviceStrategy(const std::string& device = "CPU:0");
};

// Synchronous replicas on the devices of one process (tf.distribute.MirroredStrategy).
//
//   MirroredStrategy strategy({"CPU:0", "CPU:1"});
//
// Thread-safe.
class COHORT_API MirroredStrategy final : public SynchronousStrategy {
 public:
  // An empty list means all GPUs, or CPU:0 if there are none. Throws invalid_argument if a device
  // is listed twice, belongs to a different task or does not exist (GPU:7 with two GPUs).
  explicit MirroredStrategy(const std::vector<std::string>& devices = {});
};

struct MultiWorkerMirroredOptions {
  // The devices of this worker; all workers must have the same number. Empty: all GPUs, or CPU:0.
  std::vector<std::string> devices = {};
  Duration timeout = std::chrono::minutes(5);  // for each wait for other workers
};

// Synchronous replicas on the devices of several workers, all of which run the same program
// (tf.distribute.MultiWorkerMirroredStrategy). Thread-safe, except that the calls in which workers
// wait for each other (reduce, gather, distribute_datasets_from_function and iterators of its
// datasets) must be made from one thread at a time, in the same order on all workers.
class COHORT_API MultiWorkerMirroredStrategy final : public SynchronousStrategy {
 public:
  // For workers that exchange bytes through `group`, such as threads of one process
  // (InProcessWorkers).
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<collective::Group> group,
                                       const MultiWorkerMirroredOptions& options = {});
  // Throws unimplemented: workers in separate processes need a Group that connects processes, which
  // does not exist yet.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       const MultiWorkerMirroredOptions& options = {});
};

}  // namespace cohort
