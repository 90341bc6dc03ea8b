// SPDX-License-Identifier: Apache-2.0
// The base class of all strategies (tf.distribute.Strategy), and the context in which code runs.
//
// In replica context, code runs for one replica, as inside run(). In cross-replica context, it runs
// once for all replicas of a strategy, as inside scope() and merge_call(). Contexts nest on each
// thread. Outside of all of them, a thread is in the replica context of the default strategy, or,
// after set_strategy(), in the cross-replica context of that strategy.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/function/function.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/strategy/replica_call.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/replicated.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

class ClusterResolver;  // cluster/cluster_resolver.h
class Strategy;
class StrategyExtended;  // strategy/strategy_extended.h
struct VariableRequest;

namespace internal {
class FunctionHost;       // synchronous/traced/traced_programs.h
class StrategyVariables;  // strategy/strategy_parts.h
class StrategyWorkers;    // workers/strategy_workers.h

// The properties that StrategyExtended tells. A value type.
struct StrategyTraits {
  bool is_multi_worker = false;
  bool is_first_worker = true;
  std::optional<bool> is_between_graph = true;  // nullopt: it has no such property
  bool updates_only_own_variables = false;
  bool runs_on_all_devices = false;  // update_non_slot() runs once on each device
  bool is_asynchronous = false;      // one program gives work to workers that wait for nobody
  CrossDeviceOps cross_device_ops = CrossDeviceOps::reduction_to_one_device;
};
}  // namespace internal

template <class F>
class StrategyFunction;  // strategy/strategy_function.h

// Leaves the strategy's scope when it is destroyed. Used only from the thread that entered it.
class COHORT_API StrategyScope {
 public:
  explicit StrategyScope(Strategy& strategy);
  ~StrategyScope();
  StrategyScope(const StrategyScope&) = delete;
  StrategyScope& operator=(const StrategyScope&) = delete;
  // Leaves the scope now. Throws failed_precondition, and stays in it, while a VariableCreatorScope
  // that was opened inside is open, or a replica of the strategy runs on this thread.
  void exit();

 private:
  void leave();

  Strategy& strategy_;
  bool has_pushed_;
  bool is_open_ = true;
};

struct VariableOptions {
  // Not given: true for floating-point variables that are not synchronized on read.
  std::optional<bool> is_trainable = {};
  // For strategies of several replicas in one process: when the replicas' values are made equal,
  // and how they are combined. Elsewhere there is one value.
  VariableSynchronization synchronization = VariableSynchronization::automatic;
  VariableAggregation aggregation = VariableAggregation::none;
  // Places the variable on the same server as this one; the next variable's server stays the same.
  std::optional<Variable> colocate_with = {};
};
struct ReplicateOptions {
  std::string name = "model";  // variables are named "<name>/<path in the module>"
};

// Base of all strategies. Thread-safe, unless a subclass says otherwise. A strategy must outlive
// its runs, so a replica must not destroy it. Many methods because a program calls each part of
// tf.distribute.Strategy on its strategy.
class COHORT_API Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  virtual std::string_view name() const = 0;
  virtual int num_replicas_in_sync() const = 0;
  // The devices on which this worker's replicas run, and those that hold variables, such as
  // "CPU:0". Throws failed_precondition for the default strategy, which has no devices of its own.
  virtual std::vector<std::string> worker_devices() const = 0;
  virtual std::vector<std::string> parameter_devices() const = 0;
  // Enters cross-replica context of this strategy until the object is destroyed. Throws
  // failed_precondition inside a different strategy's scope ("mixing strategies") and in a replica
  // context ("use merge_call").
  [[nodiscard]] StrategyScope scope() { return StrategyScope(*this); }

  // Creates a variable where this strategy keeps variables. Throws failed_precondition inside the
  // scope of a different strategy or of the default one ("mixing strategies"); already_exists for a
  // name that another variable has; invalid_argument for options that do not fit each other or the
  // value; unimplemented for a strategy without variables, the default one.
  Variable variable(std::string name, const at::Tensor& initial_value,
                    const VariableOptions& options = {});
  // The same, with an initial value that is computed from the strategy's seed and the name. Also
  // throws the errors of Initializer::make().
  Variable variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                    const VariableOptions& options = {});

  // Runs factory, which returns a new torch::nn module or a holder of one, and makes variables of
  // its parameters and buffers. LibTorch's generator is seeded meanwhile: by torch::manual_seed()'s
  // number (or ClusterOptions::seed) and that of the module. Its c10::Error becomes an Error.
  //
  // With replicas in this process, factory runs once for each, and each replica has its own module
  // with the values of the first. A parameter is a variable that is synchronized on write; a buffer
  // is synchronized on read: its value outside run() is the mean of the replicas, or the first
  // replica's for integers.
  //
  // Steps use the module through the returned handle. Each step begins in the mode in which factory
  // left the module; train() and eval() inside a step hold until its end. A tensor that the module
  // registers under several names (tied weights) becomes one variable with the first name; a weight
  // in channels_last order becomes row-major. Throws as variable() does; already_exists if a tensor
  // shares memory with another variable: clone() a captured one; invalid_argument if the factory
  // makes different modules, or two that have one tensor. If it throws, no variable is created.
  template <class Factory>
  auto replicate(Factory factory, const ReplicateOptions& options = {}) {
    using M = std::invoke_result_t<Factory&>;
    using Shared = typename Replicated<M>::Shared;
    auto shared = std::make_shared<Shared>(Shared{{}, factory, {}, {}, {}});
    const std::uint64_t seed = next_module_seed();
    for (int i = 0; i < num_modules(); ++i) {
      const auto guard = internal::seed_default_generator(seed);
      try {
        shared->modules.push_back(factory());
      } catch (const c10::Error&) {  // its what() would have a page of stack frames
        throw current_error().during("making the module of replicate()");
      }
    }
    std::vector<internal::ModuleCopy> copies;
    for (std::size_t i = 0; i < shared->modules.size(); ++i)
      copies.push_back(internal::copy_of(shared, i, options.name));
    const std::vector<internal::NamedTensor> tensors = copies[0].tensors;
    internal::ModuleVariables placed = place_module(options.name, std::move(copies));
    shared->variables = std::move(placed.variables);
    shared->home = std::move(placed.home);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      if (tensors[i].is_trainable) shared->parameters.push_back(shared->variables[i]);
    }
    return Replicated<M>(std::move(shared));
  }

  // Distributes a dataset of global batches: splits each batch into one mini-batch per replica, and
  // shards the data over the workers as DatasetOptions say (experimental_distribute_dataset).
  DistributedDataset distribute_dataset(const Dataset& dataset, const InputOptions& options = {});
  // Calls fn at once, one time per input pipeline; it returns a dataset of per-replica batches. All
  // workers make this call; if fn throws on one, all throw its error.
  DistributedDataset distribute_datasets_from_function(const DatasetFunction& fn,
                                                       const InputOptions& options = {});
  // Returns the values that value_fn returns for each local replica. Throws unimplemented for
  // ParameterServerStrategy: pass the values to ClusterCoordinator::schedule() as arguments.
  PerReplica<Nest> distribute_values_from_function(const ValueFunction& value_fn);

  // Runs fn once for each local replica, in that replica's context and with its component of each
  // distributed argument. If the only argument is an element that is a tuple, its items become the
  // arguments of fn.
  //
  // The replicas run at the same time: replica 0 on this thread, others on threads with its grad
  // mode, autocast and dispatch keys. So fn needs a lock to change what its replicas share.
  //
  // With several replicas, operators without a generator (dropout, rand) draw from the replica's,
  // which is seeded by a number of LibTorch's default one, drawn when a replica first needs it. So
  // torch::manual_seed() makes random numbers repeatable before run(), but not inside fn. Each
  // replica computes with its share of this thread's at::get_num_threads().
  // Returns after all replicas have ended. Throws the error of one that failed; an Error, as those
  // of LibTorch become, has the replica's number, rows and shapes. The changes of the step since
  // its last update are undone: buffers, variables that no optimizer trains, random numbers.
  // Variables are passed whole. A tensor or variable that is the same in all replicas is returned
  // as a value that is not wrapped, and so is a Nest of which every leaf is: the same tensor, or an
  // equal text or bool. Throws invalid_argument, naming the place, if the replicas return nests of
  // different structure. Components of a variable come back as a whole.
  //
  // Variables of the strategy may be assigned inside fn, as their VariableAggregation says; updates
  // of others throw unimplemented with several replicas. Runs at the same time on several threads
  // share the modes of modules; none may change a variable that another uses. Throws
  // invalid_argument for a distributed argument that has not one component for each local replica;
  // failed_precondition in a replica, in the scope of another strategy, and while replicas have
  // different values since a run failed.
  template <class F, class... A>
  auto run(F&& fn, A&&... arguments) {
    constexpr internal::CallProblem kProblem = internal::call_problem<F, A...>();
    static_assert(kProblem != internal::CallProblem::generic,
                  "Strategy::run() spreads an element over the function's parameters: give them "
                  "types (at::Tensor or cohort::Nest) in place of auto");
    static_assert(kProblem != internal::CallProblem::count,
                  "Strategy::run() needs one argument for each parameter of the function: write "
                  "run(fn, a, b) for a function of two");
    static_assert(kProblem != internal::CallProblem::types,
                  "Strategy::run() cannot call the function with these arguments: write one for "
                  "each parameter, of its type (a PerReplica<T> argument gives each replica a T)");
    if constexpr (kProblem == internal::CallProblem::none) {
      const auto replicas = static_cast<std::size_t>(num_local_replicas());
      internal::check_arguments(*this, "run", replicas, arguments...);
      const internal::ArgumentsOfRun described(replicas, arguments...);
      using Result = internal::ReplicaResult<F, A...>;
      if constexpr (std::is_void_v<Result>) {
        run_replicas([&](ReplicaContext& context) {
          internal::call_for(fn, static_cast<std::size_t>(context.local_replica_id()),
                             arguments...);
        });
        return PerReplica<void>(replicas);
      } else {
        // Each replica writes to a place of its own.
        std::vector<std::optional<Result>> places(replicas);
        run_replicas([&](ReplicaContext& context) {
          const auto replica = static_cast<std::size_t>(context.local_replica_id());
          places.at(replica).emplace(internal::call_for(fn, replica, arguments...));
        });
        std::vector<Result> results;
        for (std::optional<Result>& place : places) results.push_back(std::move(place).value());
        return internal::regrouped(std::move(results), num_replicas_in_sync() == 1, "run");
      }
    }
  }

  // A step that is called like run(step, …) and returns what that returns, but runs the LibTorch
  // operators that a trace of `step` has recorded (tf.function), which takes less time: without
  // autograd, and without the work of calling C++ code.
  //
  //   auto train = strategy.function([&](at::Tensor x, at::Tensor y) { …; return loss; });
  //   for (const DistributedElement& batch : dataset) losses = train(batch);
  //
  // The first call of each signature traces `step` in every replica, one after the other, with the
  // replica's arguments. function/function.h says what a signature is, what `step` may take and
  // return, and what a trace freezes; modes of modules belong to the signature too, while
  // optimizers' hyperparameters and schedules are read by each call. The fifth trace logs a
  // warning; of each replica the 32 programs that were used last are kept. A trace changes the
  // values of variables and puts them back. Other steps of function() wait for it; make no run(),
  // and no other use of variables, at that time.
  //
  // Results have no graph. Tensors arrive in row-major order. Random numbers are those of run().
  //
  // Throws unimplemented for ParameterServerStrategy and for GPUs, and for a step that
  // calls merge_call() or a TorchOptimizer; failed_precondition for a variable made inside, and for
  // current_worker_index(); invalid_argument for what a trace cannot record, such as a number that
  // `step` reads on the host, or a parameter that is no variable of this strategy: call run() for
  // these. The strategy, and what `step` captures by reference, must outlive the last call.
  template <class F>
  StrategyFunction<std::decay_t<F>> function(F&& step, FunctionOptions options = {},
                                             const char* file = __builtin_FILE(),
                                             int line = __builtin_LINE());

  // The components of this worker's replicas; a value that is not distributed is the only one, but
  // of lists, tuples and maps each replica gets a copy.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return value.local_results();
  }
  std::vector<Nest> local_results(const PerReplica<Nest>& value) const;
  std::vector<Nest> local_results(const Nest& value) const;
  // The components of a variable, as variables of their own; assignments to one change it alone.
  // Throws invalid_argument for a variable of another strategy.
  std::vector<Variable> local_results(const Variable& variable) const;
  // The parts of a strategy that libraries use, such as update() and reduce_to(). cohort.h includes
  // strategy/strategy_extended.h, which has the type.
  StrategyExtended extended();
  // How this strategy found its cluster; nullptr: it did not need one.
  virtual const ClusterResolver* cluster_resolver() const { return nullptr; }
  // Combines the values of all replicas in sync, element by element. The mean divides by the number
  // of replicas; a mean of integers is float64, of narrow ones float32. A number in a nest counts
  // as an int64 or float32 tensor. The rows of sparse COO tensors are collected from all replicas.
  // For a variable, the value in each replica is reduced. With one replica in sync, returns its
  // component, which shares its memory.
  //
  // A value, or a leaf of a nest, that is the same in all replicas has no sum, only a mean: itself.
  // These are values that are not distributed, that are equal by construction (is_mirrored()), and
  // those of variables that are not synchronized on read. But the host value 0 is its own sum, and
  // with several workers, a value that is not distributed is one of each worker.
  //
  // With `axis`, also along dimensions: first each replica's value along them, which may have other
  // sizes in each, then over the replicas. The mean divides by the number of all elements, so
  // uneven batches are weighted by their sizes. A value that is not distributed is reduced by each
  // replica. reduce("mean", losses, 0) is the mean of all losses. The max (min) of no elements is
  // -inf (inf), or the smallest (largest) number of an integer type.
  //
  // Exchanges values with the other workers, if there are several, and gives all of them the same
  // result: all workers must make the same calls in the same order, from one thread at a time. If
  // another thread is in such a call, or starts an iterator, or is in
  // distribute_datasets_from_function(), throws failed_precondition. Throws invalid_argument if
  // shapes or dtypes differ, for bool and strings, for an axis that a value does not have, for a
  // sum of what is the same in all replicas, and for a variable of another strategy; unimplemented
  // for sparse tensors with an axis.
  at::Tensor reduce(ReduceOpOrName op, const PerReplica<at::Tensor>& value,
                    const Axes& axis = Axes::none());
  at::Tensor reduce(ReduceOpOrName op, const at::Tensor& value, const Axes& axis = Axes::none()) {
    return reduce(op, PerReplica<at::Tensor>::bare(value), axis);
  }
  at::Tensor reduce(ReduceOpOrName op, const Variable& value, const Axes& axis = Axes::none()) {
    return reduce(op, values_of(value, "reduce"), axis);
  }
  Nest reduce(ReduceOpOrName op, const PerReplica<Nest>& value, const Axes& axis = Axes::none());
  Nest reduce(ReduceOpOrName op, const Nest& value, const Axes& axis = Axes::none()) {
    return reduce(op, PerReplica<Nest>::bare(value), axis);
  }
  // Concatenates the components of all replicas in sync, by worker and then by replica, along
  // dimension `axis`, in which their sizes may differ; with the other workers as reduce() does.
  // Returns as it is a value that is not distributed, and the component of the only replica in
  // sync. Throws invalid_argument if components differ in rank, dtype or another size, for scalars,
  // and for an axis that is negative or that they do not have; unimplemented for sparse tensors.
  at::Tensor gather(const PerReplica<at::Tensor>& value, std::int64_t axis);
  at::Tensor gather(const at::Tensor& value, std::int64_t axis) {
    return gather(PerReplica<at::Tensor>::bare(value), axis);
  }
  at::Tensor gather(const Variable& value, std::int64_t axis) {
    return gather(values_of(value, "gather"), axis);
  }
  Nest gather(const PerReplica<Nest>& value, std::int64_t axis);
  Nest gather(const Nest& value, std::int64_t axis) {
    return gather(PerReplica<Nest>::bare(value), axis);
  }
  // Returns when all workers have called it with this name (torch.distributed.barrier()); at once
  // with one worker. Waits for `timeout`, or that of the strategy if it is not given or 0: then
  // throws deadline_exceeded, naming those that have not come. As reduce(), for all workers in one
  // order. Throws invalid_argument if another worker makes another call, or with another name;
  // failed_precondition in a replica; unimplemented on parameter servers.
  void barrier(std::string_view name, std::optional<Duration> timeout = {});
  // Returns to all workers the value of worker number `from` (torch.distributed.broadcast(), which
  // writes into a tensor); the others give one of its structure. Leaves are tensors,
  // also of strings, numbers, bools and texts. With one worker, returns `value` itself. Waits and
  // throws as barrier() does; invalid_argument for a `from` that is no worker.
  Nest broadcast(const Nest& value, int from = 0);
  at::Tensor broadcast(const at::Tensor& value, int from = 0);

 protected:
  // The parts of which a strategy is composed. The objects live as long as the strategy.
  //
  // The home of its variables and modules; nullptr: it has none, and refuses to make any.
  virtual internal::StrategyVariables* variables() const { return nullptr; }
  // The number of replicas that run on this worker.
  virtual int num_local_replicas() const { return 1; }
  // Runs body once for each of the num_local_replicas(), in any order or at the same time.
  virtual void run_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  // Makes the programs of function(); nullptr: function() throws unimplemented.
  virtual internal::FunctionHost* functions() { return nullptr; }
  // The devices and workers that receive distributed input. Throws unimplemented for
  // ParameterServerStrategy, whose workers read their own input.
  virtual std::shared_ptr<const input::InputHost> input_host() = 0;
  virtual internal::StrategyWorkers* workers() { return nullptr; }  // nullptr: there is one worker
  virtual internal::StrategyTraits traits() const { return {}; }

 private:
  friend class internal::StrategyAccess;
  Variable create(VariableRequest wanted);
  // For replicate(): of variables(), which throw unimplemented if there are none.
  std::uint64_t next_module_seed();
  int num_modules() const;
  internal::ModuleVariables place_module(std::string_view name,
                                         std::vector<internal::ModuleCopy> copies);
  internal::StrategyVariables& variables_for(std::string_view method,
                                             const std::string& what) const;
  // Throws invalid_argument for a variable of another strategy, unless that is a plain one.
  void check_takes(const Variable& variable, std::string_view call) const;
  // The value of each component, as reduce() takes it. `call` is for the message.
  PerReplica<at::Tensor> values_of(const Variable& variable, std::string_view call) const;
  std::atomic<bool> has_warned_of_size_ = false;  // average_loss(), of a global_batch_size
};

// The current context of this thread (tf.distribute.get_strategy and related functions).
COHORT_API Strategy& get_strategy();
COHORT_API bool has_strategy();
COHORT_API bool in_cross_replica_context();
COHORT_API ReplicaContext* get_replica_context();  // nullptr in cross-replica context
// Makes `strategy` current on this thread, as its scope() would, until the next set_strategy();
// nullptr restores the default strategy. The strategy must outlive its use here. Throws
// failed_precondition inside a scope or a replica.
COHORT_API void set_strategy(Strategy* strategy);
// The current strategy of a thread that has entered no scope and has set no strategy.
COHORT_API Strategy& default_strategy();

}  // namespace cohort
