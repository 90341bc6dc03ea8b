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

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "cohort/collective/reduce_op.h"
#include "cohort/core/error.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/strategy/replica_call.h"
#include "cohort/strategy/replicated.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

class Strategy;

namespace internal {
class MirroredHome;    // strategy/internal/mirrored_home.h
class ReplicaAccess;   // strategy.cpp
class ReplicaRun;      // strategy/internal/replica_run.h
class ReplicaThreads;  // strategy/internal/replica_threads.h
}  // namespace internal

// The context of one replica (tf.distribute.ReplicaContext). Used only from the replica's thread,
// while the replica runs.
class COHORT_API ReplicaContext {
 public:
  // `replica_id`: among all replicas in sync. `local_replica_id`: among those of this worker.
  ReplicaContext(Strategy& strategy, int replica_id, int local_replica_id = 0)
      : strategy_(strategy), replica_id_(replica_id), local_replica_id_(local_replica_id) {}
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  Strategy& strategy() const { return strategy_; }
  int replica_id_in_sync_group() const { return replica_id_; }
  int local_replica_id() const { return local_replica_id_; }
  int num_replicas_in_sync() const;

  // Runs merge_fn(strategy, values...) once for all replicas, in cross-replica context. Each value
  // is a PerReplica<T> with that argument of each replica. Returns what merge_fn returns, and this
  // replica's component if that is a PerReplica.
  //
  //   at::Tensor total = get_replica_context()->merge_call(
  //       [](Strategy& strategy, const PerReplica<at::Tensor>& losses) {
  //         return strategy.reduce(ReduceOp::sum, losses);
  //       },
  //       loss);
  //
  // All local replicas must make the same calls in the same order. merge_fn of replica 0 is called,
  // on its thread. A tensor that is the same object in all replicas arrives as a value that is not
  // wrapped. An error of merge_fn is thrown in every replica. The replicas share a result that is
  // not a PerReplica, so they must not write into it.
  //
  // Throws failed_precondition if this is not the current context, or if a replica returns without
  // making the call; invalid_argument if the types of the arguments differ between replicas;
  // cancelled if another replica fails. With several workers, each merges its own replicas.
  template <class F, class... A>
  auto merge_call(F&& merge_fn, A&&... arguments) {
    constexpr internal::CallProblem kProblem = internal::merge_problem<F, A...>();
    static_assert(kProblem != internal::CallProblem::generic,
                  "ReplicaContext::merge_call() cannot tell what a generic lambda takes: give its "
                  "parameters types (cohort::Strategy&, cohort::PerReplica<at::Tensor>)");
    static_assert(kProblem != internal::CallProblem::count,
                  "ReplicaContext::merge_call() needs a function of the strategy and one more "
                  "parameter for each argument: write merge_call(fn, a) for fn(Strategy&, "
                  "PerReplica<A>)");
    static_assert(kProblem != internal::CallProblem::types,
                  "ReplicaContext::merge_call() cannot call the function: its first parameter is "
                  "cohort::Strategy&, and an argument of type T becomes a cohort::PerReplica<T>");
    if constexpr (kProblem == internal::CallProblem::none) {
      using Result = internal::MergeResult<F, A...>;
      using Arguments = std::tuple<std::decay_t<A>...>;
      const Arguments own(std::forward<A>(arguments)...);
      const std::shared_ptr<const void> merged = meet(
          {&typeid(std::pair<Arguments, Result*>), &own}, [&](const std::vector<const void*>& all) {
            return internal::merge_all<Result, Arguments>(merge_fn, strategy_,
                                                          num_replicas_in_sync() == 1, all);
          });
      if constexpr (!std::is_void_v<Result>) {
        return internal::own_component(*static_cast<const Result*>(merged.get()),
                                       static_cast<std::size_t>(local_replica_id_));
      }
    }
  }

 private:
  friend class internal::ReplicaAccess;
  ReplicaContext(Strategy& strategy, int replica_id, int local_replica_id,
                 internal::ReplicaRun* run)
      : strategy_(strategy),
        replica_id_(replica_id),
        local_replica_id_(local_replica_id),
        run_(run) {}
  // Checks that this is the current context, meets the other replicas, and returns what `merge`
  // made of their arguments in cross-replica context.
  std::shared_ptr<const void> meet(const internal::MergeOffer& offer, const internal::Merge& merge);

  Strategy& strategy_;
  int replica_id_;
  int local_replica_id_;
  internal::ReplicaRun* run_ = nullptr;  // nullptr: the only local replica
};

// Leaves the strategy's scope when it is destroyed. Used only from the thread that entered it.
class COHORT_API StrategyScope {
 public:
  explicit StrategyScope(Strategy& strategy);
  ~StrategyScope();
  StrategyScope(const StrategyScope&) = delete;
  StrategyScope& operator=(const StrategyScope&) = delete;

 private:
  Strategy& strategy_;
  bool has_pushed_;
};

struct VariableOptions {
  // Not given: true, but false for variables that are synchronized on read.
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

// Base of all strategies. Thread-safe, unless a subclass says otherwise. Many methods because a
// program calls each part of tf.distribute.Strategy on its strategy.
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
  // value; unimplemented for strategies without variables: the default one, and several workers.
  Variable variable(std::string name, const at::Tensor& initial_value,
                    const VariableOptions& options = {}) {
    return create_variable(std::move(name), initial_value, options);
  }
  // The same, with an initial value that is computed from the strategy's seed and the name. Also
  // throws the errors of Initializer::make().
  Variable variable(std::string name, const TensorSpec& spec, const Initializer& initializer,
                    const VariableOptions& options = {}) {
    return create_variable(std::move(name), spec, initializer, options);
  }

  // Runs factory, with LibTorch's generator seeded by the strategy's seed, and makes variables of
  // the module's parameters and buffers. factory returns a new torch::nn module or a holder of one.
  // A c10::Error that it throws becomes an Error; other exceptions pass unchanged.
  //
  // With replicas in this process, factory runs once for each, and each replica has its own module
  // with the values of the first. A parameter is a variable that is synchronized on write; a buffer
  // is synchronized on read: its value outside run() is the mean of the replicas, or the first
  // replica's for integers.
  //
  // Steps use the module through the returned handle. Each step begins in the mode in which factory
  // left the module; train() and eval() inside a step hold until its end. A tensor that the module
  // registers under several names (tied weights) becomes one variable with the first name; a weight
  // in channels_last order becomes row-major. Throws as variable() does, and already_exists if two
  // tensors share memory (set_data): register one tensor under both names; invalid_argument if the
  // factory makes different modules. If it throws, no variable is created.
  template <class Factory>
  auto replicate(Factory factory, const ReplicateOptions& options = {}) {
    using M = std::invoke_result_t<Factory&>;
    using Shared = typename Replicated<M>::Shared;
    const auto seeded = [&] {
      const auto guard = internal::seed_default_generator(module_seed());
      try {
        return factory();
      } catch (const c10::Error&) {  // its what() would have a page of stack frames
        throw current_error().during("making the module of replicate()");
      }
    };
    auto shared = std::make_shared<Shared>(Shared{{}, factory, {}, {}, {}});
    for (int i = 0; i < num_modules(); ++i) shared->modules.push_back(seeded());
    std::vector<internal::ModuleCopy> copies;
    for (std::size_t i = 0; i < shared->modules.size(); ++i)
      copies.push_back(internal::copy_of(shared, i));
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
  // The replicas run at the same time: replica 0 on this thread, the others on threads of the
  // strategy with this thread's grad mode, autocast and dispatch keys. So fn must not change what
  // its replicas share without a lock, such as captured counters and vectors.
  //
  // Returns after all replicas have ended. Throws the error of one that failed, with the replica's
  // number if it is an Error. A tensor that is the same object in all replicas is returned as a
  // value that is not wrapped. With several replicas, updating a variable inside fn throws
  // unimplemented.
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
      using Result = internal::ReplicaResult<F, A...>;
      if constexpr (std::is_void_v<Result>) {
        run_replicas([&](ReplicaContext& context) {
          internal::call_for(fn, static_cast<std::size_t>(context.local_replica_id()),
                             arguments...);
        });
        return PerReplica<void>(static_cast<std::size_t>(num_local_replicas()));
      } else {
        // Each replica writes to a place of its own.
        std::vector<std::optional<Result>> places(static_cast<std::size_t>(num_local_replicas()));
        run_replicas([&](ReplicaContext& context) {
          const auto replica = static_cast<std::size_t>(context.local_replica_id());
          places.at(replica).emplace(internal::call_for(fn, replica, arguments...));
        });
        std::vector<Result> results;
        for (std::optional<Result>& place : places) results.push_back(std::move(place).value());
        return internal::regrouped(std::move(results), num_replicas_in_sync() == 1);
      }
    }
  }

  // The components of this worker's replicas; a value that is not distributed is the only one.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return value.local_results();
  }
  std::vector<Nest> local_results(const Nest& value) const { return {value}; }
  // These two exchange values with the other workers, if there are several: all workers must make
  // the same calls in the same order, from one thread at a time. If another thread is in such a
  // call, or starts an iterator, or is in distribute_datasets_from_function(), they throw
  // failed_precondition.
  //
  // With one replica in sync, both return its component, which shares its memory.
  //
  // Combines the values of all replicas in sync, element by element. Every worker gets the same
  // result. The mean divides by the number of replicas; a mean of integers is float64, of narrow
  // ones float32. A value that is the same object in all replicas has no sum.
  //
  // Throws invalid_argument if shapes or dtypes differ, and for bool and strings.
  at::Tensor reduce(ReduceOpOrName op, const PerReplica<at::Tensor>& value) {
    return reduce_along(op, value, std::nullopt);
  }
  Nest reduce(ReduceOpOrName op, const PerReplica<Nest>& value) {
    return reduce_along(op, value, std::nullopt);
  }
  // The same along dimensions too: first each replica's value along `axis`, which may have other
  // sizes in each, then over the replicas. The mean divides by the number of all elements, so
  // uneven batches are weighted by their sizes. Also throws invalid_argument for an axis that a
  // value does not have. reduce("mean", losses, 0) is the mean of all losses.
  at::Tensor reduce(ReduceOpOrName op, const PerReplica<at::Tensor>& value, const Axes& axis) {
    return reduce_along(op, value, axis);
  }
  Nest reduce(ReduceOpOrName op, const PerReplica<Nest>& value, const Axes& axis) {
    return reduce_along(op, value, axis);
  }
  // Concatenates the components of all replicas in sync along dimension `axis`.
  at::Tensor gather(const PerReplica<at::Tensor>& value, std::int64_t axis);
  Nest gather(const PerReplica<Nest>& value, std::int64_t axis);

 protected:
  // These throw unimplemented; a strategy that has variables overrides them all.
  virtual Variable create_variable(std::string name, const at::Tensor& initial_value,
                                   const VariableOptions& options);
  virtual Variable create_variable(std::string name, const TensorSpec& spec,
                                   const Initializer& initializer, const VariableOptions& options);
  // The seed for the factory of replicate().
  virtual std::uint64_t module_seed() const;
  // The number of modules that replicate() makes: one for each replica that has its own.
  virtual int num_modules() const { return 1; }
  // Makes all or none of the variables "<name>/<name of the tensor>".
  virtual internal::ModuleVariables place_module(std::string_view name,
                                                 std::vector<internal::ModuleCopy> copies);
  // The number of replicas that run on this worker.
  virtual int num_local_replicas() const { return 1; }
  // Runs body once for each of the num_local_replicas(), in any order or at the same time.
  virtual void run_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  // The devices and workers that receive distributed input. Throws unimplemented for
  // ParameterServerStrategy, whose workers read their own input.
  virtual std::shared_ptr<const input::InputHost> input_host() = 0;
  friend class ReplicaContext;

 private:
  at::Tensor reduce_along(ReduceOp op, const PerReplica<at::Tensor>& value,
                          const std::optional<Axes>& axes);
  Nest reduce_along(ReduceOp op, const PerReplica<Nest>& value, const std::optional<Axes>& axes);
};

struct AverageLossOptions {
  at::Tensor weights = {};  // of the losses, of a shape that broadcasts to theirs; none: all are 1
  // Not given: the number of losses in all replicas, which they count in a merge_call().
  std::optional<std::int64_t> global_batch_size = {};
};
// The sum of a replica's losses, divided by the size of the global batch, so that the replicas' sum
// is the mean over all examples also if their batches are uneven (tf.nn.compute_average_loss).
// `losses` has one floating-point loss for each example in its first dimension, as
// Reduction::None gives them. Throws invalid_argument for a scalar and a size that is not positive;
// failed_precondition in cross-replica context.
COHORT_API at::Tensor average_loss(const at::Tensor& losses,
                                   const AverageLossOptions& options = {});
// Divides a loss that does not depend on the batch, such as a penalty of weights, by the number of
// replicas, whose gradients are summed (tf.nn.scale_regularization_loss). Throws
// failed_precondition in cross-replica context.
COHORT_API at::Tensor scale_regularization_loss(const at::Tensor& loss);

// The current context of this thread (tf.distribute.get_strategy and related functions).
COHORT_API Strategy& get_strategy();
COHORT_API bool has_strategy();
COHORT_API bool in_cross_replica_context();
// Returns nullptr in cross-replica context.
COHORT_API ReplicaContext* get_replica_context();
// Makes `strategy` current on this thread, as its scope() would, until the next call; nullptr
// restores the default strategy. The strategy must outlive its use here. Throws failed_precondition
// inside a scope or a replica.
COHORT_API void set_strategy(Strategy* strategy);
// The current strategy of a thread that has entered no scope and has set no strategy.
COHORT_API Strategy& default_strategy();

}  // namespace cohort
