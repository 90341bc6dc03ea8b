// SPDX-License-Identifier: Apache-2.0
// The calls that one replica may make while it runs: meet the other replicas, combine values with
// them, scale its loss.
#pragma once

#include <ATen/core/Tensor.h>

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

#include "cohort/collective/group.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/strategy/replica_call.h"
#include "cohort/variable/variable.h"

namespace cohort {

class Optimizer;
class Strategy;

namespace internal {
class ReplicaRun;      // replicas/replica_run.h
class StrategyAccess;  // strategy/strategy_access.h
}  // namespace internal

// The context of one replica (tf.distribute.ReplicaContext); get_replica_context() returns the
// current one. Its calls work on the replica's thread while the replica runs, and not inside of a
// merge. A value type: to keep a context, keep a copy, not the pointer. The calls of a copy whose
// replica has ended throw failed_precondition.
class COHORT_API ReplicaContext {
 public:
  Strategy& strategy() const { return *strategy_; }
  int replica_id_in_sync_group() const { return replica_id_; }  // among all replicas in sync
  int local_replica_id() const { return local_replica_id_; }    // among those of this worker
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
  // on its thread. A thread that the function of run() starts itself is in no replica: there,
  // get_replica_context() is that of the default strategy. A tensor that is the same object in all
  // replicas arrives as a value that is not wrapped. An error of merge_fn is thrown in every
  // replica. The replicas share a result that is not a PerReplica, so they must not write into it.
  //
  // Throws failed_precondition if this is not the current context, or if a replica returns without
  // making the call; invalid_argument if the types of the arguments differ between replicas, or
  // the structures of nests; cancelled if another replica fails; unimplemented in a step of
  // function(), whose merge_fn would run in the trace alone. With several workers, each merges its
  // own replicas.
  template <class F, class... A>
  auto merge_call(F&& merge_fn, A&&... arguments) const {
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
      return merge_as("merge_call", std::forward<F>(merge_fn), std::forward<A>(arguments)...);
    }
  }

  // Combines a value of each replica, element by element, and returns the result to all of them in
  // memory of their own (tf.distribute.ReplicaContext.all_reduce). All replicas, also of other
  // workers, must make the same calls in the same order, with values of one structure, dtype and
  // shape; the tensors of a nest are one call. A number in a nest counts as an int64 or float32
  // tensor. `value` may be a variable: its value in this replica. Values that are the same tensor
  // in all replicas are added too. The mean of integers is float64, of narrow ones float32. With
  // one replica in sync, returns a copy.
  //
  // Gradients flow, but max and min refuse a value that requires one: the gradient of a sum over
  // replicas is the sum of their gradients, and of a mean the mean. If a value requires a gradient
  // in one replica, the results do in all, and the backward passes of the replicas meet: all
  // replicas must make them, inside run() and in the same order. A backward pass throws
  // failed_precondition outside of the replica, and if another replica ends without making it;
  // invalid_argument if it meets another call. The rows of sparse COO tensors, as
  // embedding(sparse=True) makes them, are collected; they have no gradient.
  //
  // Throws failed_precondition if this is not the current context, or if a replica returns without
  // making the call. In every replica throws invalid_argument if the calls or values differ, for
  // bool and strings, for max and min of complex numbers, and if a gradient is required while
  // another replica has switched gradients off; unimplemented for sparse tensors that require a
  // gradient, and for max and min of any that do, or of sparse ones.
  at::Tensor all_reduce(ReduceOpOrName op, const at::Tensor& value,
                        const CommunicationOptions& options = {}) const;
  at::Tensor all_reduce(ReduceOpOrName op, const Variable& value,
                        const CommunicationOptions& options = {}) const;
  Nest all_reduce(ReduceOpOrName op, const Nest& value,
                  const CommunicationOptions& options = {}) const;
  // Concatenates the values of all replicas along dimension `axis`, in which they may have
  // different sizes, also 0 (tf.distribute.ReplicaContext.all_gather). Gradients flow: a replica
  // gets the sum over the replicas of the gradients of its own part.
  //
  // Throws as all_reduce() does, but takes bool, and strings along axis 0; invalid_argument, in
  // every replica, for a scalar, and an axis that is negative or that the value does not have;
  // unimplemented for sparse tensors.
  at::Tensor all_gather(const at::Tensor& value, std::int64_t axis,
                        const CommunicationOptions& options = {}) const;
  at::Tensor all_gather(const Variable& value, std::int64_t axis,
                        const CommunicationOptions& options = {}) const;
  Nest all_gather(const Nest& value, std::int64_t axis,
                  const CommunicationOptions& options = {}) const;

 private:
  friend class internal::StrategyAccess;
  ReplicaContext(Strategy& strategy, int replica_id, int local_replica_id,
                 internal::ReplicaRun* run);
  // merge_call() for a call of another name.
  template <class F, class... A>
  auto merge_as(std::string_view call, F&& merge_fn, A&&... arguments) const {
    using Result = internal::MergeResult<F, A...>;
    using Values = std::tuple<std::decay_t<A>...>;
    const Values own(std::forward<A>(arguments)...);
    const std::shared_ptr<const void> merged =
        meet({&typeid(std::pair<Values, Result*>), &own, call},
             [&](const std::vector<const void*>& all) {
               return internal::merge_all<Result, Values>(merge_fn, strategy(),
                                                          num_replicas_in_sync() == 1, all);
             });
    if constexpr (!std::is_void_v<Result>) {
      return internal::own_component(*static_cast<const Result*>(merged.get()),
                                     static_cast<std::size_t>(local_replica_id_));
    }
  }
  // Throws failed_precondition, naming the call, if this is not the current context.
  void check_is_current(std::string_view call) const;
  // Checks that, meets the other replicas, and returns what `merge` made of their arguments in
  // cross-replica context.
  std::shared_ptr<const void> meet(const internal::MergeOffer& offer,
                                   const internal::Merge& merge) const;

  Strategy* strategy_;
  int replica_id_;
  int local_replica_id_;
  // Used only while this context is current. nullptr: the only local replica.
  internal::ReplicaRun* run_;
  std::uint64_t serial_;  // copies have the same
};

// The loss of all replicas whose gradient minimize() applies.
enum class GradientReduction : std::uint8_t {
  mean_over_global_batch,  // the mean loss of all examples, however many each replica has
  sum,                     // the sum of all losses
  // The mean over the replicas of the mean loss of each (PyTorch's DistributedDataParallel). Where
  // batches are uneven, examples then count differently. The mean of no example is 0.
  mean_of_means,
};
struct AverageLossOptions {
  at::Tensor weights = {};  // of the losses, of a shape that broadcasts to theirs; none: all are 1
  // Only for mean_over_global_batch: the number of losses in all replicas. Not given: they add it
  // up in an all_reduce(). A warning tells once of the number of one replica's losses.
  std::optional<std::int64_t> global_batch_size = {};
  GradientReduction reduction = GradientReduction::mean_over_global_batch;
};
// The sum of a replica's losses, divided by the size of the global batch, so that the replicas' sum
// is the mean over all examples also if their batches are uneven (tf.nn.compute_average_loss); or
// with another divisor, as options.reduction says. `losses` has one floating-point loss for each
// example in its first dimension, as Reduction::None gives them. Throws invalid_argument for a
// scalar, for a size that is not positive and for one with another reduction; failed_precondition
// in cross-replica context.
COHORT_API at::Tensor average_loss(const at::Tensor& losses,
                                   const AverageLossOptions& options = {});
// Divides a loss that does not depend on the batch, such as a penalty of weights, by the number of
// replicas, whose gradients are summed (tf.nn.scale_regularization_loss). Throws
// failed_precondition in cross-replica context.
COHORT_API at::Tensor scale_regularization_loss(const at::Tensor& loss);

// The gradients of a loss that the replica computes in parts, one after the other: loss_of(i)
// returns the loss of part i of its batch, and the result is the sum of the gradients of all
// `parts`. Give it to apply_gradients(), which adds those of the replicas. For batches that do not
// fit into memory at once, and for training that gives the same bits on 1, 2, 4, … devices:
//
//   optimizer.apply_gradients(gradients_in_parts(optimizer, parts, [&](int i) {
//     const at::Tensor losses = losses_of(net->forward(x.tensor_split(parts).at(i)));
//     return average_loss(losses, {.global_batch_size = size});
//   }));
//
// tensor_split() makes empty parts of a batch with fewer rows, where chunk() makes fewer parts.
//
// Parts are computed with one thread, and gradients are added in one tree over all parts of all
// replicas. So float32 and float64 gradients are bit for bit those of 1, 2, 4 or 8 replicas if the
// numbers of replicas and parts are powers of two and the global batch has the same parts in the
// same order. Random numbers and statistics of BatchNorm belong to replicas, so steps with them
// differ. On GPUs the gradients are equal up to rounding, since LibTorch's kernels there may add in
// any order (at::globalContext().setDeterministicAlgorithms()). This call does not wait for other
// replicas, unless loss_of does.
//
// Throws invalid_argument for fewer than one part; failed_precondition from average_loss() inside
// if it is not given the global_batch_size, which no part knows, and outside of a replica context;
// unimplemented inside a step that ClusterCoordinator traces; what compute_gradients() throws. A
// step of Strategy::function() has the bits of run().
COHORT_API std::vector<std::pair<at::Tensor, Variable>> gradients_in_parts(
    const Optimizer& optimizer, int parts, const std::function<at::Tensor(int)>& loss_of);

// Sums of gradients over several steps, of which the last makes one update (the several backward()
// of torch, Keras' gradient_accumulation_steps), in run() and in steps of function():
//
//   const cohort::AccumulatedGradients sums(strategy, optimizer);
//   const auto add = strategy.function([&](at::Tensor x) { sums.add(loss_of(x)); });
//   const auto update = strategy.function([&](at::Tensor x) {
//     sums.add(loss_of(x));
//     optimizer.apply_gradients(cohort::clip_by_global_norm(sums.take(), 1.0).gradients);
//   });
//   for (int i = 1; const cohort::DistributedElement& batch : batches)
//     i++ % 4 == 0 ? update(batch) : add(batch);
//
// Scale each loss by the rows of all these steps: average_loss() of the rows of one step counts
// as many times too much as there are steps. Each replica has sums of its own, which travel in the
// update alone. They are variables, "accumulated/<variable>", in the variable's dtype,
// so that they are undone with a failed step and belong to a checkpoint. A variable that got no
// gradient counts as zero. Rows of sparse gradients are added as dense ones. Thread-safe.
class COHORT_API AccumulatedGradients {
 public:
  // Throws unimplemented for parameter servers, and for replicas that share one value
  // (CentralStorageStrategy); already_exists if a variable has such sums already;
  // failed_precondition in a replica.
  AccumulatedGradients(Strategy& strategy, const Optimizer& optimizer);
  // Adds the gradients of this replica's loss. Throws as Optimizer::compute_gradients().
  void add(const at::Tensor& loss) const;
  // The sums of this replica, for apply_gradients(), which adds those of the replicas. They begin
  // again with zero.
  std::vector<std::pair<at::Tensor, Variable>> take() const;

 private:
  void check_replica(std::string_view call) const;

  std::shared_ptr<const Optimizer> optimizer_;  // shared: its type is not complete here
  std::vector<Variable> sums_;                  // of the optimizer's variables; shared by copies
};

}  // namespace cohort

namespace cohort::internal {

// Throws invalid_argument if another strategy has distributed the element.
COHORT_API void check_origin(Strategy& strategy, const void* origin, std::string_view call,
                             std::size_t index);

template <class... A>
void check_arguments(Strategy& strategy, std::string_view call, std::size_t replicas,
                     const A&... arguments) {
  [[maybe_unused]] std::size_t index = 0;
  [[maybe_unused]] const auto check = [&](const auto& argument) {
    if constexpr (kIsPerReplica<decltype(argument)>) {
      if (argument.is_wrapped() && argument.size() != replicas)
        check_components(argument.size(), replicas, call, "argument " + std::to_string(index));
    }
    if constexpr (std::is_base_of_v<DistributedElement, std::remove_cvref_t<decltype(argument)>>)
      check_origin(strategy, argument.strategy(), call, index);
    ++index;
  };
  (check(arguments), ...);
}

}  // namespace cohort::internal
