// SPDX-License-Identifier: Apache-2.0
// How a strategy uses the home of its variables, if it has one; distributed input, results of
// run(), and reduce() and gather() of plain values.
#include <ATen/core/TensorBody.h>

#include "cohort/core/call_site.h"
#include "cohort/core/string_tensor.h"
#include "cohort/input/input_host.h"
#include "cohort/replicas/reduction.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/strategy.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/strategy/strategy_extended.h"
#include "cohort/strategy/strategy_parts.h"
#include "cohort/variable/variable_home.h"
#include "cohort/workers/worker_values.h"

namespace cohort {
namespace {

using internal::Contributions;
using internal::Reduction;

// The leaves of a distributed value: of each leaf, the local replicas' values, or one if it is the
// same in all.
class Leaves {
 public:
  Leaves(const PerReplica<Nest>& value, const input::InputHost& host, std::string_view call)
      : is_mirrored_(value.is_mirrored()) {
    const std::size_t replicas =
        value.is_wrapped() ? static_cast<std::size_t>(host.num_local_replicas()) : 1;
    COHORT_CHECK(value.size() == replicas, ErrorCode::invalid_argument, "[strategy.", call,
                 "] expected ", replicas, " components, got ", value.size(),
                 "; pass a result of run() of the same strategy");
    const std::vector<Nest>& components = value.local_results();
    internal::check_one_structure(components, call);
    for (const Nest& component : components) {
      const std::vector<Nest> leaves = component.flatten();
      leaves_.resize(leaves.size());
      for (std::size_t i = 0; i < leaves.size(); ++i) leaves_[i].push_back(leaves[i]);
    }
    // A leaf that was given to each replica as a component is one of each.
    const bool may_be_shared = replicas > 1 && !value[0].is_leaf();
    for (std::vector<Nest>& leaf : leaves_) {
      is_shared_.push_back(!value.is_wrapped() || (may_be_shared && internal::is_one_object(leaf)));
      if (is_shared_.back()) leaf.resize(1);
    }
  }

  std::size_t size() const { return leaves_.size(); }
  const std::vector<Nest>& operator[](std::size_t i) const { return leaves_[i]; }
  // Whether there is one value for all local replicas.
  bool is_shared(std::size_t i) const { return is_shared_[i]; }
  bool is_mirrored() const { return is_mirrored_; }
  // Which leaves are shared, for comparison between workers.
  std::string kinds() const {
    std::string text;
    for (const bool is_shared : is_shared_) text += is_shared ? '=' : '*';
    return text;
  }

 private:
  std::vector<std::vector<Nest>> leaves_;
  std::vector<bool> is_shared_;
  bool is_mirrored_;
};

// The component of the only replica in sync.
const Nest& only_component(const PerReplica<Nest>& value, std::string_view call) {
  COHORT_CHECK(value.size() == 1, ErrorCode::invalid_argument, "[strategy.", call,
               "] expected 1 component, got ", value.size(),
               "; pass a result of run() of the same strategy");
  return value[0];
}

bool is_zero(const Nest& value) {
  return (value.kind() == Nest::Kind::integer && value.integer() == 0) ||
         (value.kind() == Nest::Kind::real && value.real() == 0);
}

// The reduction of a value that needs no other component.
Nest reduced_alone(ReduceOp op, const Nest& value, int replicas) {
  COHORT_CHECK(
      op != ReduceOp::sum || is_zero(value), ErrorCode::invalid_argument,
      "[strategy.reduce] expected a value of each replica to sum, got one that is the "
      "same for all ",
      replicas,
      "; pass what run() has returned, which is a value of each replica, or multiply it by "
      "the number of replicas");
  return value;
}

std::string text_of(ReduceOp op, const Axes& axis) {
  std::string text = "reduce(" + std::string(name_of(op));
  if (!axis.is_none()) {
    text += ", axis";
    for (const std::int64_t number : axis.numbers()) text += " " + std::to_string(number);
  }
  return text + ")";
}

// The parts that this worker's replicas add to the sum of one leaf.
std::vector<Reduction::Parts> parts_of(const Reduction& reduction, const std::vector<Nest>& leaf,
                                       std::size_t copies) {
  std::vector<Reduction::Parts> parts;
  for (const Nest& value : leaf)
    parts.push_back(reduction.parts(internal::tensor_of(value, "reduce")));
  // Each replica has the same value.
  if (copies > 1) parts.resize(copies, parts.front());
  return parts;
}

}  // namespace

internal::StrategyVariables& Strategy::variables_for(std::string_view method,
                                                     const std::string& what) const {
  internal::StrategyVariables* const own = variables();
  COHORT_CHECK(own != nullptr, ErrorCode::unimplemented, "[strategy.", method, "] ", what,
               ": expected a strategy that has variables, got '", name(),
               "'; call the method of the strategy that trains (MirroredStrategy, "
               "ParameterServerStrategy, …), or use local_variable() for one of this process, "
               "which a step with one replica may update");
  return *own;
}

std::uint64_t Strategy::next_module_seed() {
  return variables_for("replicate", "a module").next_module_seed();
}

int Strategy::num_modules() const { return variables_for("replicate", "a module").num_modules(); }

internal::ModuleVariables Strategy::place_module(std::string_view module,
                                                 std::vector<internal::ModuleCopy> copies) {
  return variables_for("replicate", "module '" + std::string(module) + "'")
      .place_module(module, std::move(copies));
}

StrategyExtended Strategy::extended() { return StrategyExtended(*this); }

DistributedDataset Strategy::distribute_dataset(const Dataset& dataset,
                                                const InputOptions& options) {
  internal::check_can_run(*this, "distribute_dataset");
  return DistributedDataset::from_dataset(input_host(), dataset, options);
}

DistributedDataset Strategy::distribute_datasets_from_function(const DatasetFunction& fn,
                                                               const InputOptions& options) {
  internal::check_can_run(*this, "distribute_datasets_from_function");
  return DistributedDataset::from_function(input_host(), fn, options);
}

PerReplica<Nest> Strategy::distribute_values_from_function(const ValueFunction& value_fn) {
  internal::check_can_run(*this, "distribute_values_from_function");
  return distributed_values(*input_host(), value_fn);
}

std::vector<Nest> Strategy::local_results(const PerReplica<Nest>& value) const {
  return value.is_wrapped() ? value.local_results() : local_results(value.value());
}

std::vector<Nest> Strategy::local_results(const Nest& value) const {
  return std::vector<Nest>(value.is_leaf() ? 1 : static_cast<std::size_t>(num_local_replicas()),
                           value);
}

std::vector<Variable> Strategy::local_results(const Variable& variable) const {
  check_takes(variable, "local_results");
  return internal::StrategyAccess::components_of(*this, variable);
}

// For another strategy its variable would be a plain value on one device.
void Strategy::check_takes(const Variable& variable, std::string_view call) const {
  COHORT_CHECK(internal::StrategyAccess::owns(*this, variable) ||
                   !variable.impl()->home()->is_of_one_strategy(),
               ErrorCode::invalid_argument, "[strategy.", call, "] expected a variable of '",
               name(), "', got '", variable.name(),
               "' of another strategy; make it with strategy.variable(), or call the method of the "
               "strategy that has made it");
}

PerReplica<at::Tensor> Strategy::values_of(const Variable& variable, std::string_view call) const {
  check_takes(variable, call);
  const std::vector<Variable> components = internal::StrategyAccess::components_of(*this, variable);
  const bool are_elsewhere = num_replicas_in_sync() > num_local_replicas();
  if (components.size() == 1 && !(are_elsewhere && internal::StrategyAccess::owns(*this, variable)))
    return PerReplica<at::Tensor>::bare(variable.read());
  // With several workers, that of the variable itself would be the value of all.
  std::vector<at::Tensor> values;
  for (const Variable& component : components) values.push_back(component.read());
  return variable.impl()->replication().synchronization == VariableSynchronization::on_read
             ? PerReplica<at::Tensor>(std::move(values))
             : PerReplica<at::Tensor>::mirrored(std::move(values));
}

Nest Strategy::reduce(ReduceOpOrName op, const PerReplica<Nest>& value, const Axes& axis) {
  const internal::CallSite site("is in reduce()");
  internal::check_can_run(*this, "reduce");
  const Reduction reduction(op, axis, "strategy.reduce", traits().cross_device_ops);
  if (num_replicas_in_sync() == 1) {
    const Nest& only = only_component(value, "reduce");
    if (axis.is_none()) return only;
    return only.map_leaves([&](const Nest& leaf) -> Nest {
      return reduction.result(reduction.parts(internal::tensor_of(leaf, "reduce")));
    });
  }
  const std::shared_ptr<const input::InputHost> host = input_host();
  std::optional<Leaves> leaves;
  std::vector<std::optional<Nest>> alone;  // results of leaves that need no other component
  const auto contribute = [&] {
    leaves.emplace(value, *host, "reduce");
    const auto local = static_cast<std::size_t>(host->num_local_replicas());
    Contributions own(leaves->size());
    alone.resize(leaves->size());
    for (std::size_t i = 0; i < leaves->size(); ++i) {
      const bool is_of_all =
          leaves->is_mirrored() || (leaves->is_shared(i) && host->num_workers() == 1);
      if (axis.is_none() && is_of_all) {
        alone[i] = reduced_alone(op, (*leaves)[i].front(), num_replicas_in_sync());
      } else {
        const bool is_one_each = leaves->is_shared(i) && !axis.is_none();
        own[i] = parts_of(reduction, (*leaves)[i], is_one_each ? local : 1);
      }
    }
    return own;
  };
  const Contributions all = internal::of_all_workers(
      workers(), "reduce",
      [&] { return text_of(op, axis) + " of " + value[0].structure() + leaves->kinds(); },
      contribute);
  std::vector<Nest> results;
  for (std::size_t i = 0; i < all.size(); ++i)
    results.push_back(alone[i] ? *alone[i] : Nest(reduction.result(reduction.sum(all[i]))));
  return internal::packed(value[0], std::move(results));
}

at::Tensor Strategy::reduce(ReduceOpOrName op, const PerReplica<at::Tensor>& value,
                            const Axes& axis) {
  return reduce(op, internal::as_nests(value), axis).tensor();
}

Nest Strategy::gather(const PerReplica<Nest>& value, std::int64_t axis) {
  const internal::CallSite site("is in gather()");
  internal::check_can_run(*this, "gather");
  const auto check_dense = [&] {
    for (const Nest& component : value.local_results()) {
      for (const at::Tensor& tensor : component.flatten_tensors())
        internal::check_is_dense(tensor, "gather");
    }
  };
  if (num_replicas_in_sync() == 1) {
    check_dense();
    return only_component(value, "gather");
  }
  const std::shared_ptr<const input::InputHost> host = input_host();
  std::optional<Leaves> leaves;
  const auto is_alone = [&](std::size_t i) {
    return leaves->is_shared(i) && host->num_workers() == 1;
  };
  const auto contribute = [&] {
    check_dense();
    leaves.emplace(value, *host, "gather");
    Contributions own(leaves->size());
    for (std::size_t i = 0; i < leaves->size(); ++i) {
      if (is_alone(i)) continue;
      for (const Nest& leaf : (*leaves)[i])
        own[i].push_back({.value = internal::tensor_of(leaf, "gather")});
    }
    return own;
  };
  const Contributions all = internal::of_all_workers(
      workers(), "gather",
      [&] {
        return "gather(axis " + std::to_string(axis) + ") of " + value[0].structure() +
               leaves->kinds();
      },
      contribute);
  std::vector<Nest> results;
  for (std::size_t i = 0; i < all.size(); ++i)
    results.push_back(is_alone(i) ? (*leaves)[i].front()
                                  : Nest(internal::concatenated(all[i], axis, "gather")));
  return internal::packed(value[0], std::move(results));
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& value, std::int64_t axis) {
  return gather(internal::as_nests(value), axis).tensor();
}

namespace internal {

bool StrategyAccess::owns(const Strategy& strategy, const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->owns(variable) : &strategy == &default_strategy();
}

std::vector<Variable> StrategyAccess::components_of(const Strategy& strategy,
                                                    const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->components_of(variable) : std::vector<Variable>{variable};
}

std::vector<std::string> StrategyAccess::devices_of(const Strategy& strategy,
                                                    const Variable& variable) {
  const StrategyVariables* const own = strategy.variables();
  return own != nullptr ? own->devices_of(variable) : std::vector<std::string>{"CPU:0"};
}

void check_origin(Strategy& strategy, const void* origin, std::string_view call,
                  std::size_t index) {
  if (origin == nullptr || &strategy == &default_strategy()) return;
  const std::shared_ptr<const input::InputHost> host = StrategyAccess::input_host(strategy);
  COHORT_CHECK(host == nullptr || host->num_iterators.get() == origin, ErrorCode::invalid_argument,
               "[strategy.", call, "] expected an element of a dataset that this '",
               strategy.name(), "' has distributed as argument ", index,
               ", got one of another strategy, whose replicas and workers divide each batch in "
               "their own way; call distribute_dataset() of the strategy that runs the step");
}

}  // namespace internal
}  // namespace cohort
