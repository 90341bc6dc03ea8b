// SPDX-License-Identifier: Apache-2.0
// Synchronous strategies: replicas on devices of this process. They distribute input, run functions
// on each replica, and reduce and gather values. Their variables have a component for each replica,
// or one value for all (CentralStorageStrategy, OneDeviceStrategy). Optimizers sum the gradients of
// all replicas before each update, so components that were equal stay equal.
#pragma once

#include <chrono>
#include <cstddef>
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
#include "cohort/strategy/strategy_function.h"

namespace cohort {

class ClusterResolver;  // cluster/cluster_resolver.h
namespace internal {
enum class VariableKind : std::uint8_t;  // synchronous/mirrored/mirrored_home.h
class CentralValues;                     // synchronous/central_values.h
class CurrentHost;
class MirroredHome;
class ReplicaThreads;
class WorkerGroups;
class WorkerGroupsAccess;
}  // namespace internal
namespace input {
struct InputHost;  // input/input_host.h
}

// The replicas of this worker run at the same time, each on a thread (Strategy::run()). On that
// thread the replica's GPU is the current device, and the current streams are those of the caller.
// Thread-safe, with several workers only as MultiWorkerMirroredStrategy says.
class COHORT_API SynchronousStrategy : public Strategy {
 public:
  ~SynchronousStrategy() override;
  std::string_view name() const final;
  int num_replicas_in_sync() const final;
  std::vector<std::string> worker_devices() const override;
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

  // Before the first variable: the values of all are kept there, and replicas have copies of them.
  void keep_values_in(std::shared_ptr<internal::CentralValues> values);
  // The kind of variables that are kept so, with as many devices as here.
  static internal::VariableKind kind_of_central_values(std::size_t devices);

  internal::StrategyVariables* variables() const final { return variables_.get(); }
  int num_local_replicas() const final;
  void run_replicas(const std::function<void(ReplicaContext&)>& body) final;
  internal::FunctionHost* functions() final { return functions_.get(); }
  std::shared_ptr<const input::InputHost> input_host() final { return host(); }
  internal::StrategyWorkers* workers() final { return workers_.get(); }
  internal::StrategyTraits traits() const override;
  // The host of the present group.
  std::shared_ptr<const input::InputHost> host() const;
  const std::shared_ptr<internal::MirroredHome>& home() const { return home_; }
  // For each wait for other workers.
  Duration timeout() const;
  // Goes on with the workers of this group. Distributed datasets of the one before refuse their
  // use.
  // `is_first`: all workers begin together.
  void use_group(std::shared_ptr<collective::Group> group, bool is_first);
  // Distributed datasets refuse their use until use_group().
  void end_group();

 private:
  void run_here(const std::function<void(ReplicaContext&)>& body);

  std::shared_ptr<internal::CurrentHost> host_;
  std::unique_ptr<internal::ReplicaThreads> threads_;
  std::shared_ptr<internal::StrategyWorkers> workers_;
  std::shared_ptr<internal::MirroredHome> home_;
  // Shared, since their types are not complete here.
  std::shared_ptr<internal::StrategyVariables> variables_;
  std::shared_ptr<internal::FunctionHost> functions_;
};

// One replica on one device (tf.distribute.OneDeviceStrategy). Use it to try a program that is
// written for many replicas. Thread-safe.
class COHORT_API OneDeviceStrategy final : public SynchronousStrategy {
 public:
  // Throws invalid_argument for a device that this process does not have.
  explicit OneDeviceStrategy(const std::string& device = "CPU:0");
};

struct MirroredOptions {
  // Used for gradients, reduce() and all_reduce(). On CPUs, which share memory, both are the same.
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
// - a step that writes in place into a variable's tensor throws invalid_argument at its end, since
//   the replicas would write at the same time;
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
  // For each wait for other workers, also for those that start later: 5 minutes unless it is given.
  // CommunicationOptions::timeout replaces it.
  Duration timeout = std::chrono::minutes(5);
  // A worker that starts again while the others train waits in the constructor until they call
  // rebuild(): this long, if it is longer than `timeout`. Choose more than the time between two
  // such calls.
  Duration return_timeout = std::chrono::hours(1);
  // The transport of values between workers that are processes. With GroupBackend::mpi they are
  // those of MPI_COMM_WORLD, in the order of ranks; TF_CONFIG is not needed, but must agree if it
  // is there.
  GroupBackend backend = GroupBackend::automatic;
  CommunicationOptions communication = {};
  // Dense float32 gradients travel between workers as bfloat16: half of the bytes, but each
  // worker's sum is rounded to 8 bits before they are added (as float32) and once after that. So
  // results differ from those of one process. All workers must have the same value.
  bool sends_bfloat16_gradients = false;
  // Each worker keeps the slots of optimizers only for its share of the elements of each variable:
  // their memory is divided by the number of workers (the first stage of ZeRO). In a step it gets
  // the sums of the gradients of its share, updates it, and sends the new values to the others.
  // Results have the same bits as without. All workers must have the same value.
  //
  // If a worker is lost, so is its share, and rebuild() throws data_loss. Refuses
  // sends_bfloat16_gradients, TorchOptimizer, and updates outside of run() of an optimizer that has
  // made a step in run(). Has no effect on a worker alone.
  bool shard_optimizer_state = false;
  // While the backward pass of minimize() still runs, packs of gradients that are complete travel
  // on another thread, if a step has more than CommunicationOptions::bytes_per_pack, or at least
  // 1 MiB if that is 0. Results have the same bits. It saves time where a core or a network is idle
  // meanwhile, and costs time where the workers of one host use all cores. Without effect on
  // workers with several replicas or with GPUs, with shard_optimizer_state, on steps of function(),
  // on gradients that the program takes itself (compute_gradients()) and on TorchOptimizer: these
  // travel after the backward pass. All workers must have the same value.
  bool overlaps_communication = false;
  // After a loss, rebuild() forms no group that may be the smaller side of a network that is
  // divided, so that no two groups train apart: see there. With this, such a group goes on all the
  // same. All workers must have the same value.
  bool allow_minority = false;
};

// Synchronous replicas on the devices of several workers, all of which run the same program
// (tf.distribute.MultiWorkerMirroredStrategy).
//
//   MultiWorkerMirroredStrategy strategy;  // its cluster and task are in the environment
//
// Worker 0 is the chief, if the cluster has one, and the others follow in the order of their tasks.
// After a loss, rebuild() lets the others go on. docs/guide/workers.md has such a program.
//
// Training has the bits of MirroredStrategy with all their replicas, if each worker has 1, 2, 4 or
// 8, the replicas have the same rows, and their random numbers begin alike (torch::manual_seed() in
// each process; threads share one generator). With one replica a worker, distribute_dataset() gives
// them the same rows; with several, it deals the mini-batches of a batch to the workers in turn, as
// tf's does, so a step has the same rows in other replicas, and a sum other rounding.
//
// The workers wait for each other where a call concerns the replicas of all: making variables and
// modules, reduce, gather, iterators, rebuild, reads of variables that are synchronized on read,
// steps of function(); in run(): minimize(), all_reduce() and so on. All make these calls in the
// same order. If they do not, all throw invalid_argument, which says what which worker did. If a
// run of one throws, it waits for the next call of the others, which then throw that error; none of
// them has made half of an update. Each wait ends at the timeout of the options, by default
// after 5 minutes, with deadline_exceeded. Parameters that something else than these calls has made
// different on the workers are found at the end of a run in which they have combined nothing, at
// the start of an iterator, and by minimize(), snapshot() and save_values().
//
// Thread-safe, but those calls must be made from one thread at a time.
class COHORT_API MultiWorkerMirroredStrategy final : public SynchronousStrategy {
 public:
  // The workers are the tasks of the jobs chief and worker of TF_CONFIG or, without it, those that
  // Slurm, torchrun or mpirun has started (ClusterResolver::from_environment()). On
  // GroupBackend::mpi only TF_CONFIG counts beside MPI.
  explicit MultiWorkerMirroredStrategy(const MultiWorkerMirroredOptions& options = {});
  // The same for the cluster of `resolver`, which is asked once. Listens at the address of this
  // task and waits until all workers have come. In a worker that starts again while the others
  // train, it waits until they call rebuild(), and takes over their values: see there.
  //
  // Without a cluster, and in an evaluator, this process is a worker alone. Throws invalid_argument
  // if the own task is not known, is no chief, worker or evaluator, or is not in the cluster, for a
  // cluster with a chief and parameter servers, and for bad addresses and options;
  // resource_exhausted if the address is in use; deadline_exceeded, naming the tasks that have not
  // come.
  explicit MultiWorkerMirroredStrategy(const ClusterResolver& resolver,
                                       const MultiWorkerMirroredOptions& options = {});
  // For workers that exchange bytes through `group`, such as threads of one process
  // (InProcessWorkers).
  explicit MultiWorkerMirroredStrategy(std::shared_ptr<collective::Group> group,
                                       const MultiWorkerMirroredOptions& options = {});
  ~MultiWorkerMirroredStrategy() override;

  // The resolver's answers when the strategy was made; nullptr for a given group.
  const ClusterResolver* cluster_resolver() const override { return resolver_.get(); }

  // Forms a new group of workers, after an error that named a lost one, or to take in one that has
  // come back. All workers that are left make this call at the same point of their programs; those
  // whose process does not run, and those that have not come after `wait` (the timeout of the
  // options), are left out. num_workers(),
  // worker() and num_replicas_in_sync() change. Iterators must be made again; distributed datasets,
  // variables, modules, optimizers and steps of function() stay. The next iterator of a dataset
  // divides the data among the workers that there are then; it begins a pass.
  //
  // All workers then have the state of one: the values of variables, also of each replica's own
  // (on_read), the slots and the step numbers of optimizers, a TorchOptimizer's state as far as its
  // save() writes it, and the state of LibTorch's default generator where it has the same seed. It
  // is the first worker, in their order, that was in the last group, so a step that some had made
  // when they failed is undone in those, or made in the others. That holds for one update: if a
  // step has several (minimize(), assignments that are aggregated), those before the loss stay, and
  // the step is made again. So count steps by Optimizer::iterations(), or outside of run().
  //
  // A worker that has come back, a process that starts again, takes over the same state when it
  // creates its variables and optimizers, under the same names as the others, in place of initial
  // values. Until its first run(), restore_values(), load() and set_iterations() change nothing,
  // with a warning, since what they would restore is older. A variable that the others do not have
  // throws failed_precondition then. Keep in variables what the program must know of the progress.
  //
  // The workers that are left must be more than half of the last group, or half with its first one;
  // those whose process is known to have ended do not count (it ran on this host, or its address
  // refuses connections). Otherwise the others may train on at the other side of a network that is
  // divided: then it throws unavailable with the cause must_restart after `wait` (exit code 75),
  // unless allow_minority is set. It does so at once in a worker that the others have given up,
  // because it was stopped for example, if they have ended since: what they have trained is newer.
  //
  // Throws failed_precondition in a replica, and while a run or a call in which workers wait for
  // each other is in progress on another thread; unimplemented for a given group and for
  // GroupBackend::mpi; the error of a worker that is lost meanwhile, naming it. Then runs throw
  // failed_precondition until another call of rebuild() has succeeded; it throws data_loss if no
  // worker is left that has all values, or with shard_optimizer_state all slots: then the values
  // can still be read and saved.
  void rebuild();
  void rebuild(Duration wait);

 private:
  friend class internal::WorkerGroupsAccess;
  // `groups`: nullptr: of the processes that `resolver` names, if there are several.
  MultiWorkerMirroredStrategy(std::shared_ptr<internal::WorkerGroups> groups,
                              std::unique_ptr<const ClusterResolver> resolver,
                              const MultiWorkerMirroredOptions& options);
  // `begins`: this is the constructor.
  // As the arguments of collective::ProcessGroups::form().
  struct Waits {
    Duration forming;
    Duration returning = Duration::zero();
  };
  void join_group(const Waits& waits, bool begins);

  std::unique_ptr<const ClusterResolver> resolver_;
  std::shared_ptr<internal::WorkerGroups> groups_;  // shared: its type is not complete here
};

}  // namespace cohort
