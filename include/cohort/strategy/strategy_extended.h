// SPDX-License-Identifier: Apache-2.0
// The parts of a strategy that libraries use and training programs seldom need
// (tf.distribute.StrategyExtended).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/collective/group.h"
#include "cohort/core/export.h"
#include "cohort/core/nest.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/input/per_replica.h"
#include "cohort/strategy/replica_call.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Where a result goes: to one device, or a copy of it to each of several. A value type.
class COHORT_API Destinations {
 public:
  // A device such as "CPU:1". Throws invalid_argument if the text is none.
  Destinations(std::string_view device);                                        // NOLINT
  Destinations(const char* device) : Destinations(std::string_view(device)) {}  // NOLINT
  Destinations(std::nullptr_t) = delete;                                        // NOLINT: not 0
  Destinations(const std::string& device) : Destinations(std::string_view(device)) {}  // NOLINT
  // The devices of the variable's components. The variable itself is not changed.
  Destinations(const Variable& variable) : variable_(variable) {}  // NOLINT
  // The device of the tensor; of each component of a distributed value.
  Destinations(const at::Tensor& tensor);  // NOLINT
  template <class T>
  Destinations(const PerReplica<T>& value)  // NOLINT
      : components_(value.is_wrapped() ? value.size() : 1) {}

  // Throws invalid_argument for a device that this process does not have, for more components than
  // the strategy has replicas, and for a variable of another strategy.
  std::vector<std::string> of(const Strategy& strategy) const;

 private:
  std::optional<Variable> variable_ = {};
  std::size_t components_ = 0;        // not 0: the devices of the first so many replicas
  std::vector<std::string> devices_;  // else these
};

// A value on one device, or equal copies of it on several (tf's Mirrored). A value type; copies
// share tensors. On one device it is bare, and converts to T.
template <class T = at::Tensor>
class Mirrored : public PerReplica<T> {
 public:
  Mirrored(std::vector<T> copies, std::vector<std::string> devices)
      : PerReplica<T>(copies.size() == 1 ? PerReplica<T>::bare(std::move(copies.front()))
                                         : PerReplica<T>::mirrored(std::move(copies))),
        devices_(std::move(devices)) {}
  // One for each copy, such as "CPU:0".
  const std::vector<std::string>& devices() const { return devices_; }

 private:
  std::vector<std::string> devices_;
};

// The arguments of a call of Strategy::variable().
struct VariableRequest {
  std::string name = {};
  at::Tensor initial_value = {};  // undefined: the initializer makes it, of the spec
  TensorSpec spec = {};
  std::optional<Initializer> initializer = {};
  VariableOptions options = {};
};
// Until the object is destroyed, Strategy::variable() on this thread, and in the replicas of its
// runs, calls `creator` in place of creating the variable (tf.variable_creator_scope). It may
// change the request, and calls next(request), which creates the variable or calls the creator of
// the scope around this one. Replicas that make a variable call it at the same time. Used only from
// the thread that made it.
//
//   VariableCreatorScope scope([](VariableRequest request, const auto& next) {
//     request.name = "encoder/" + request.name;
//     return next(std::move(request));
//   });
class COHORT_API VariableCreatorScope {
 public:
  using Next = std::function<Variable(VariableRequest)>;
  using Creator = std::function<Variable(VariableRequest request, const Next& next)>;
  // Throws invalid_argument for an empty function.
  explicit VariableCreatorScope(Creator creator);
  ~VariableCreatorScope();
  VariableCreatorScope(const VariableCreatorScope&) = delete;
  VariableCreatorScope& operator=(const VariableCreatorScope&) = delete;
  const Creator& creator() const { return creator_; }

 private:
  Creator creator_;
};

// Until the object is destroyed, variables are created on the devices of another one. Used only
// from the thread that made it.
class COHORT_API ColocationScope {
 public:
  ColocationScope(const Strategy& strategy, const Variable& variable);

 private:
  VariableCreatorScope creator_;
};

// Returned by Strategy::extended(); it must not outlive the strategy. Thread-safe as the strategy
// is. Unless said otherwise, methods throw failed_precondition in a replica context ("use
// merge_call") and inside the scope of another strategy ("mixing strategies"). Many methods because
// it has those of tf.distribute.StrategyExtended.
class COHORT_API StrategyExtended {
 public:
  explicit StrategyExtended(Strategy& strategy) : strategy_(strategy) {}

  // As Strategy::reduce() without an axis, with the result on the destinations, each in memory of
  // its own. If the only component is on the only destination already, returns it. Also throws
  // invalid_argument as Destinations::of() does.
  Mirrored<> reduce_to(ReduceOpOrName op, const PerReplica<at::Tensor>& value,
                       const Destinations& destinations, const CommunicationOptions& options = {});
  Mirrored<> reduce_to(ReduceOpOrName op, const at::Tensor& value, const Destinations& destinations,
                       const CommunicationOptions& options = {}) {
    return reduce_to(op, PerReplica<at::Tensor>::bare(value), destinations, options);
  }
  Mirrored<> reduce_to(ReduceOpOrName op, const Variable& value, const Destinations& destinations,
                       const CommunicationOptions& options = {});
  Mirrored<Nest> reduce_to(ReduceOpOrName op, const PerReplica<Nest>& value,
                           const Destinations& destinations,
                           const CommunicationOptions& options = {});
  Mirrored<Nest> reduce_to(ReduceOpOrName op, const Nest& value, const Destinations& destinations,
                           const CommunicationOptions& options = {}) {
    return reduce_to(op, PerReplica<Nest>::bare(value), destinations, options);
  }
  // The same for several values; the results are in the order of the pairs. All destinations are
  // checked first.
  using ValueAndDestinations = std::pair<PerReplica<at::Tensor>, Destinations>;
  std::vector<Mirrored<>> batch_reduce_to(ReduceOpOrName op,
                                          const std::vector<ValueAndDestinations>& pairs,
                                          const CommunicationOptions& options = {});
  // Copies of the value. A host value is passed through as it is, so that an integer can update an
  // int64 variable.
  Mirrored<> broadcast_to(const at::Tensor& value, const Destinations& destinations);
  Mirrored<Nest> broadcast_to(const Nest& value, const Destinations& destinations);

  // Calls fn(component, arguments...) for each component of the variable, one after the other;
  // assignments inside of fn act on that component alone. Distributed arguments give the
  // component's part. Returns a PerReplica of what fn returns for each, bare if there is one
  // component: tf's group=True; its local_results() are those of group=False. In a replica context,
  // all replicas make the call, it is done once, with fn of replica 0, and each gets its own
  // component of the result.
  //
  //   extended.update(v, [](const Variable& part, const at::Tensor& x) { part.assign(x); }, x);
  //
  // Throws invalid_argument for a variable that is not this strategy's; but strategies with one
  // value of each variable take any, and call fn once.
  template <class F, class... A>
  auto update(const Variable& variable, F&& fn, A&&... arguments);
  // The same without a variable: fn(arguments...) once for each of the devices, which are those of
  // non_slot_devices(). Throws invalid_argument for other devices.
  template <class F, class... A>
  auto update_non_slot(const std::vector<std::string>& devices, F&& fn, A&&... arguments);
  // Where optimizers keep values that belong to no variable, such as step counts: all devices if
  // each has components of variables; else where the variable with the smallest name is. Throws
  // invalid_argument if it needs a variable and gets none.
  std::vector<std::string> non_slot_devices(const std::vector<Variable>& variables) const;

  // The variable's value, in memory of its own: of one component, or what they are combined to.
  at::Tensor read_var(const Variable& variable) const;
  // Assigns to each component its own value (tf's Variable.assign of a distributed value); where a
  // variable has one value, that of replica 0. Throws invalid_argument, and assigns nothing, if the
  // number of values, a dtype or a shape is wrong. A variable that is synchronized on read takes
  // only values that are equal by construction (is_mirrored()), as one value.
  void assign(const Variable& variable, const PerReplica<at::Tensor>& values) const;
  void assign_add(const Variable& variable, const PerReplica<at::Tensor>& values) const;
  void assign_sub(const Variable& variable, const PerReplica<at::Tensor>& values) const;
  // The devices of a variable's components. Throws invalid_argument for a variable of another
  // strategy. In any context.
  std::vector<std::string> devices(const Variable& variable) const;
  // The variable of which this is a component (Strategy::local_results()); any other one itself. In
  // any context.
  Variable value_container(const Variable& component) const;
  // Until the object is destroyed, variables are created on the devices of `variable`, unless their
  // options say otherwise. Throws failed_precondition unless this strategy is current;
  // invalid_argument for a variable that is not this strategy's.
  [[nodiscard]] ColocationScope colocate_vars_with(const Variable& variable) const {
    return ColocationScope(strategy_, variable);
  }

  // Strategy::run(), by its older name.
  template <class F, class... A>
  auto call_for_each_replica(F&& fn, A&&... arguments) {
    return strategy_.run(std::forward<F>(fn), std::forward<A>(arguments)...);
  }

  // Whether several workers train together. Whether this one initializes variables: all do, unless
  // they share the first one's (v1::ParameterServerStrategy). Whether it saves checkpoints and
  // writes summaries: the first worker does. In any context.
  bool in_multi_worker_mode() const;
  bool should_init() const;
  bool should_checkpoint() const;
  bool should_save_summary() const { return should_checkpoint(); }
  // tf's experimental_between_graph. Throws unimplemented for the default strategy.
  bool between_graph() const;

 private:
  // Calls body(component, its number) in the context that update() describes.
  void update_each(const Variable& variable,
                   const std::function<void(const Variable&, std::size_t)>& body) const;
  void update_each_device(const std::vector<std::string>& devices,
                          const std::function<void(std::size_t)>& body) const;
  std::size_t local_replicas() const;
  // The context of this thread, if update() is called in a replica of the strategy; else nullptr.
  const ReplicaContext* replica_here() const;
  static void check_same_variable(const PerReplica<Variable>& variables);

  // fn of each component, in cross-replica context.
  template <class Result, class F, class... A>
  auto update_all(const Variable& variable, F& fn, A&... arguments) const {
    // A variable with one value for all replicas takes the first one's.
    const std::size_t components = strategy_.local_results(variable).size();
    internal::check_arguments(strategy_, "extended.update",
                              components > 1 ? components : local_replicas(), arguments...);
    if constexpr (std::is_void_v<Result>) {
      update_each(variable, [&](const Variable& component, std::size_t i) {
        internal::call_for(fn, i, component, arguments...);
      });
    } else {
      std::vector<Result> results;
      update_each(variable, [&](const Variable& component, std::size_t i) {
        results.push_back(internal::call_for(fn, i, component, arguments...));
      });
      return grouped(std::move(results));
    }
  }
  template <class Result>
  static PerReplica<Result> grouped(std::vector<Result> results) {
    return results.size() == 1 ? PerReplica<Result>::bare(std::move(results.front()))
                               : PerReplica<Result>::mirrored(std::move(results));
  }

  Strategy& strategy_;
};

template <class F, class... A>
auto StrategyExtended::update(const Variable& variable, F&& fn, A&&... arguments) {
  static_assert(
      internal::call_problem<F, const Variable&, A...>() == internal::CallProblem::none,
      "StrategyExtended::update() needs a function of a variable and one more parameter "
      "for each argument, of its type: write update(v, fn, x) for fn(const Variable&, X)");
  using Result = internal::ReplicaResult<F, const Variable, A...>;
  const ReplicaContext* const replica = replica_here();
  if (replica == nullptr) return update_all<Result>(variable, fn, arguments...);
  internal::check_arguments(strategy_, "extended.update", local_replicas(), arguments...);
  const auto i = static_cast<std::size_t>(replica->local_replica_id());
  const auto merged = [&](Strategy&, const PerReplica<Variable>& variables,
                          const PerReplica<std::decay_t<internal::ComponentOf<A>>>&... values) {
    check_same_variable(variables);
    return update_all<Result>(variables[0], fn, values...);
  };
  if constexpr (std::is_void_v<Result>) {
    replica->merge_call(merged, variable, internal::component_of(arguments, i)...);
  } else {
    return PerReplica<Result>::bare(
        replica->merge_call(merged, variable, internal::component_of(arguments, i)...));
  }
}

template <class F, class... A>
auto StrategyExtended::update_non_slot(const std::vector<std::string>& devices, F&& fn,
                                       A&&... arguments) {
  static_assert(internal::call_problem<F, A...>() == internal::CallProblem::none,
                "StrategyExtended::update_non_slot() needs a function with one parameter for each "
                "argument, of its type");
  using Result = internal::ReplicaResult<F, A...>;
  internal::check_arguments(strategy_, "extended.update_non_slot", local_replicas(), arguments...);
  if constexpr (std::is_void_v<Result>) {
    update_each_device(devices, [&](std::size_t i) { internal::call_for(fn, i, arguments...); });
  } else {
    std::vector<Result> results;
    update_each_device(devices, [&](std::size_t i) {
      results.push_back(internal::call_for(fn, i, arguments...));
    });
    return grouped(std::move(results));
  }
}

}  // namespace cohort
