// SPDX-License-Identifier: Apache-2.0
// Synchronous strategies: replicas on devices of this process. They distribute input, run functions
// on each replica, and reduce and gather values. Their variables have a component for each replica,
// or one value for all (CentralStorageStrategy, OneDeviceStrategy). Optimizers sum the gradients of
// all replicas before each update, so components that were equal stay equal.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/clock.h"
#include "cohort/core/device.h"
#include "cohort/core/export.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_extended.h"

namespace cohort {

class ClusterResolver;  // cluster/cluster_resolver.h
namespace internal {
enum class VariableKind : std::uint8_t;  // strategy/internal/mirrored_home.h
}
namespace input {
struct InputHost;  // input/detail/input_host.h
}

// The replicas of this worker run at the same time, each on a thread (Strategy::run()). On that
// thread the replica's GPU is the current device, and the current streams are those of the caller.
// Thread-safe, with several workers only as MultiWorkerMirroredStrategy says.
class COHORT_API SynchronousStrategy : public Strategy {
 public:
  ~SynchronousStrategy() override;
  std::string_view name() const final;
  int num_replicas_in_sync() const final;
  std::vector<std::string> worker_devices() const final;
  std::vector<std::string> parameter_devices() const override { return worker_devices(); }
  // The devices of this worker's replicas.
  const std::vector<Device>& devices() const;
  // The number of workers and the index of this one; 1 and 0 for a strategy of one process.
  int num_workers() const;
  int worker() const;

 protected:
  // `host` needs no `devices` and no `check_context`; they are taken from `devices`. An empty list
  // means all GPUs, or `cpus` CPUs if there are none. Throws invalid_argument if a device is listed
  // twice, belongs to a different task or does not exist (GPU:7 with two GPUs).
  SynchronousStrategy(input::InputHost&& host, const std::vector<std::string>& devices,
                      internal::VariableKind kind, int cpus = 1,
                      CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device);

  // All workers make these calls in the same order; they get the first worker's initial values.
  // Throws invalid_argument on all of them if names, dtypes, shapes or options differ. In a replica
  // context, all replicas make the call; they get the same variable, with the first replica's
  // initial value. Throws failed_precondition if they give it different names.
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
  internal::FunctionHost function_host() final;
  std::shared_ptr<const input::InputHost> input_host() final { return host_; }
  internal::StrategyWorkers* workers() final { return workers_.get(); }
  bool owns(const Variable& variable) const final;
  std::vector<Variable> components_of(const Variable& variable) const final;
  std::vector<std::string> devices_of(const Variable& variable) const final;
  internal::StrategyTraits traits() const override;
  // Whether variables have one value on the parameter device, whatever the devices of the replicas.
  virtual bool keeps_one_value() const { return false; }

 private:
  void run_here(const std::function<void(ReplicaContext&)>& body);
  void check_has_variables(std::string_view name, std::string_view method) const;

  std::shared_ptr<const input::InputHost> host_;
  std::unique_ptr<internal::ReplicaThreads> threads_;
  std::shared_ptr<internal::StrategyWorkers> workers_;  // nullptr: made without a group
  std::shared_ptr<internal::MirroredHome> home_;
};

// One replica on one device (tf.distribute.OneDeviceStrategy). Use it to try a program that is
// written for many replicas. Thread-safe.
class COHORT_API OneDeviceStrategy final : public SynchronousStrategy {
 public:
  // Throws invalid_argument for a device that this process does not have.
  explicit OneDeviceStrategy(const std::string& device = "CPU:0");
};

struct MirroredOptions {
  // Of gradients, reduce() and all_reduce(). On CPUs, which share memory, both are the same.
  CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device;
};

// Synchronous replicas on the devices of one process (tf.distribute.MirroredStrategy).
//
//   MirroredStrategy strategy({"GPU:0", "GPU:1"});
//
// Each replica's tensors are on its device. Replicas on CPUs and on GPUs may be mixed; then the
// first one makes the updates, and the others get its values. Two runs at a time on several GPUs
// throw unimplemented in a backward pass in which replicas meet.
//
// Thread-safe.
class COHORT_API MirroredStrategy final : public SynchronousStrategy {
 public:
  // An empty list means all GPUs, or the logical CPUs if there are none: CPU:0, unless
  // set_logical_cpu_devices() said otherwise. Throws invalid_argument if a device is listed twice,
  // belongs to a different task or does not exist (GPU:7 with two GPUs), and for a number that is
  // no CrossDeviceOps.
  explicit MirroredStrategy(const std::vector<std::string>& devices = {},
                            const MirroredOptions& options = {});
};

// How many CPU devices a MirroredStrategy uses that gets no list, if this process has no GPU
// (tf.config.set_logical_device_configuration); 1 at the start. Strategies that exist already do
// not change. Throws invalid_argument for a number that is not positive. Thread-safe.
COHORT_API void set_logical_cpu_devices(int count);

// Replicas on the devices of one process that share one value of each variable, on the parameter
// device (tf.distribute.experimental.CentralStorageStrategy). Variables throw unimplemented if one
// of the devices is a GPU. With several replicas:
// - each has an autograd leaf of its own for that value, and updates by all of them are applied
//   once;
// - a variable that replicas assign needs an aggregation, else they throw invalid_argument;
// - modules of replicate() share their parameters, but each keeps its own buffers, as in
//   MirroredStrategy.
//
// A replica must not compute with a variable's tensor() while others update it. Inside run() this
// cannot happen, since all replicas meet for the update. Thread-safe.
class COHORT_API CentralStorageStrategy final : public SynchronousStrategy {
 public:
  // Without compute devices: all GPUs, or CPU:0. Without a parameter device: the compute device if
  // there is one, else CPU:0. Throws as MirroredStrategy does.
  explicit CentralStorageStrategy(const std::vector<std::string>& compute_devices = {},
                                  const std::string& parameter_device = "");
  std::vector<std::string> parameter_devices() const final { return {parameter_device_}; }

 protected:
  internal::StrategyTraits traits() const final;
  bool keeps_one_value() const final { return true; }

 private:
  std::string parameter_device_;
};

// While it exists, tensor() of a variable that is synchronized on read is, in the replica that made
// the scope, the value of all replicas together (tf.distribute's variable_sync_on_read_context).
// All replicas must read the same variables in the same order; the tensor that is returned is valid
// until the replica reads the variable again, or the scope ends. If the variable is trainable,
// gradients flow to its components. In cross-replica context the scope changes no tensor(). In the
// context that made the scope, read() of such a variable throws unimplemented. Used only from the
// thread that made it.
class COHORT_API SyncOnReadScope {
 public:
  SyncOnReadScope();
  ~SyncOnReadScope();
  SyncOnReadScope(const SyncOnReadScope&) = delete;
  SyncOnReadScope& operator=(const SyncOnReadScope&) = delete;
  // Whether the innermost scope of this thread was made in the current context.
  static bool is_here();
  // Keeps the value of a variable until its next one or the end of the innermost scope of this
  // thread.
  static const at::Tensor& kept(const VariableImpl& variable, at::Tensor value);

 private:
  SyncOnReadScope* outer_;
  std::optional<ReplicaContext> replica_;             // in which it was made
  std::map<const VariableImpl*, at::Tensor> values_;  // what tensor() has returned
};

struct MultiWorkerMirroredOptions {
  // The devices of this worker; all workers must have the same number. Empty: all GPUs, or CPU:0.
  std::vector<std::string> devices = {};
  Duration timeout = std::chrono::minutes(5);  // for each wait for other workers
};

// Synchronous replicas on the devices of several workers, all of which run the same program
// (tf.distribute.MultiWorkerMirroredStrategy). Training has the bits of MirroredStrategy with all
// their replicas, if each worker has 1, 2, 4 or 8 and their random numbers begin alike
// (torch::manual_seed() in each process; threads share one generator).
//
// The workers wait for each other where a call concerns the replicas of all: making variables and
// modules, reduce, gather, iterators, reads of variables that are synchronized on read, steps of
// function(); in run(): minimize(), all_reduce() and so on. All make these calls in the same order.
// If they do not, all throw invalid_argument, which says what which worker did. If a run of one
// throws, it waits for the next call of the others, which then throw that error; none of them has
// made half of an update. Each wait has the timeout.
//
// Thread-safe, but those calls must be made from one thread at a time.
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
