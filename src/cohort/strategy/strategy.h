// SPDX-License-Identifier: Apache-2.0
// What every strategy has: a scope, replicas, and the context in which code runs
// (tf.distribute.Strategy).
//
// Each thread has a stack of modes. An empty one is the default strategy's replica context, or
// cross-replica context of what set_strategy() was given; scope() pushes cross-replica context,
// run() replica context, merge_call() cross-replica context again.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/input/distributed_dataset.h"
#include "cohort/strategy/replica_call.h"

namespace cohort {

class Strategy;

// Where replica code runs. Used only from the thread of its replica, while it runs.
class COHORT_API ReplicaContext {
 public:
  // `replica_id` counts all replicas in sync, `local_replica_id` those of this worker.
  ReplicaContext(Strategy& strategy, int replica_id, int local_replica_id = 0)
      : strategy_(strategy), replica_id_(replica_id), local_replica_id_(local_replica_id) {}
  ReplicaContext(const ReplicaContext&) = delete;
  ReplicaContext& operator=(const ReplicaContext&) = delete;

  Strategy& strategy() const { return strategy_; }
  int replica_id_in_sync_group() const { return replica_id_; }
  int local_replica_id() const { return local_replica_id_; }
  int num_replicas_in_sync() const;
  // Runs merge_fn once in cross-replica context. failed_precondition when this context is not the
  // current one.
  Nest merge_call(
      const std::function<Nest(Strategy& strategy, const std::vector<Nest>& arguments)>& merge_fn,
      const std::vector<Nest>& arguments = {});

 private:
  Strategy& strategy_;
  int replica_id_;
  int local_replica_id_;
};

// Leaves its strategy's scope when it goes. Used only from the thread that entered it.
class COHORT_API Scope {
 public:
  explicit Scope(Strategy& strategy);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  Strategy& strategy_;
  bool has_pushed_;
};

// How a value of several replicas becomes one.
enum class ReduceOp : std::uint8_t { sum, mean };

// Base of all strategies. Never copied. Thread-safe unless said otherwise.
class COHORT_API Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  virtual std::string_view name() const = 0;
  virtual int num_replicas_in_sync() const = 0;
  // Where this worker's replicas run and where variables lie, as "CPU:0"; failed_precondition for
  // the default strategy, which has no devices of its own.
  virtual std::vector<std::string> worker_devices() const = 0;
  virtual std::vector<std::string> parameter_devices() const = 0;
  // Cross-replica context of this strategy, until the object goes. failed_precondition inside
  // another strategy's scope
  // ("mixing strategies") and in a replica context ("use merge_call").
  [[nodiscard]] Scope scope() { return Scope(*this); }

  // A dataset of global batches, each cut into mini-batches for all replicas and dealt out as the
  // dataset's options say (experimental_distribute_dataset).
  DistributedDataset distribute_dataset(const Dataset& dataset, const InputOptions& options = {});
  // fn makes a dataset of per-replica batches for each pipeline, once, now.
  DistributedDataset distribute_datasets_from_function(const DatasetFunctionOfContext& fn,
                                                       const InputOptions& options = {});
  // What value_fn makes for each local replica.
  PerReplica<Nest> distribute_values_from_function(const ValueFunction& value_fn);

  // Runs fn once for each local replica, each in its own replica context and with its own component
  // of the arguments that have such. The one argument of a function may be an element, whose tuple
  // is spread over as many parameters. An error ends the run, with the replica in its context. Of
  // several replicas, variables cannot be updated inside fn yet: unimplemented.
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
        std::size_t count = 0;
        run_replicas([&](ReplicaContext& context) {
          internal::call_for(fn, static_cast<std::size_t>(context.local_replica_id()),
                             arguments...);
          count += 1;
        });
        return PerReplica<void>(count);
      } else {
        std::vector<Result> results;
        run_replicas([&](ReplicaContext& context) {
          results.push_back(internal::call_for(
              fn, static_cast<std::size_t>(context.local_replica_id()), arguments...));
        });
        if (num_replicas_in_sync() == 1) return PerReplica<Result>::bare(std::move(results[0]));
        return PerReplica<Result>(std::move(results));
      }
    }
  }

  // The components of this worker's replicas; a value that is not distributed alone.
  template <class T>
  std::vector<T> local_results(const PerReplica<T>& value) const {
    return value.local_results();
  }
  std::vector<Nest> local_results(const Nest& value) const { return {value}; }
  // Over all replicas in sync, element by element; equal on all workers.
  at::Tensor reduce(ReduceOp op, const PerReplica<at::Tensor>& value);
  Nest reduce(ReduceOp op, const PerReplica<Nest>& value);
  // The components of all replicas in sync, one behind the other along dimension `axis`.
  at::Tensor gather(const PerReplica<at::Tensor>& value, std::int64_t axis);
  Nest gather(const PerReplica<Nest>& value, std::int64_t axis);

 protected:
  // Runs body for the local replicas, one after the other; run() has no more than this from its
  // strategy.
  virtual void run_replicas(const std::function<void(ReplicaContext&)>& body) = 0;
  // Where its input goes; unimplemented for a strategy that has its input elsewhere.
  virtual std::shared_ptr<const InputHost> input_host() = 0;
  friend class ReplicaContext;
};

// The current mode of this thread (tf.distribute.get_strategy and its siblings).
COHORT_API Strategy& get_strategy();
COHORT_API bool has_strategy();
COHORT_API bool in_cross_replica_context();
// nullptr in cross-replica context.
COHORT_API ReplicaContext* get_replica_context();
// Makes `strategy` current on this thread until the next call, as its scope would; nullptr: none.
// It must live as long. failed_precondition inside a scope or a replica.
COHORT_API void set_strategy(Strategy* strategy);
// The strategy of every thread with an empty stack and none set.
COHORT_API Strategy& default_strategy();

namespace internal {
// Runs body in a replica context of `strategy` on this thread.
COHORT_API void in_replica_context(Strategy& strategy, int replica_id,
                                   const std::function<void(ReplicaContext&)>& body,
                                   int local_replica_id = 0);
// The same for each of `count` local replicas in turn; `first` is the id of the first of them in
// the sync group.
COHORT_API void in_replica_contexts(Strategy& strategy, int first, int count,
                                    const std::function<void(ReplicaContext&)>& body);
// Checks that a cross-replica method of `strategy` may run here: its own scope, or the default
// mode.
COHORT_API void check_cross_replica_or_default(const Strategy& strategy, std::string_view method);
// Checks that no other strategy is current, where a variable of this one is used. The strategy may
// have gone: it is compared only.
COHORT_API void check_not_mixing(const Strategy* strategy, std::string_view name,
                                 std::string_view method);
// The same where one is made; nor may the default strategy's scope be open.
COHORT_API void check_can_create(const Strategy* strategy, std::string_view name,
                                 std::string_view method);
}  // namespace internal

}  // namespace cohort
