// SPDX-License-Identifier: Apache-2.0
// Access to strategies and replica contexts that this module's own functions need, but users do
// not.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/strategy/strategy.h"

namespace cohort::internal {

class StrategyAccess {
 public:
  static std::shared_ptr<const input::InputHost> input_host(Strategy& strategy) {
    return strategy.input_host();
  }
  static StrategyWorkers* workers(Strategy& strategy) { return strategy.workers(); }
  static int num_local_replicas(const Strategy& strategy) { return strategy.num_local_replicas(); }
  static const StrategyVariables* variables(const Strategy& strategy) {
    return strategy.variables();
  }
  static FunctionHost* functions(Strategy& strategy) { return strategy.functions(); }
  // Whether average_loss() has not warned of a global_batch_size before this call.
  static bool is_first_wrong_size(Strategy& strategy) {
    return !strategy.has_warned_of_size_.exchange(true);
  }
  static StrategyTraits traits(const Strategy& strategy) { return strategy.traits(); }
  // Whether a variable is of this strategy, its components and their devices; the variable itself
  // if it has one value. The default strategy takes all variables.
  static bool owns(const Strategy& strategy, const Variable& variable);
  static std::vector<Variable> components_of(const Strategy& strategy, const Variable& variable);
  static std::vector<std::string> devices_of(const Strategy& strategy, const Variable& variable);
  static void check_takes(const Strategy& strategy, const Variable& variable,
                          std::string_view call) {
    strategy.check_takes(variable, call);
  }
  static PerReplica<at::Tensor> values_of(const Strategy& strategy, const Variable& variable,
                                          std::string_view call) {
    return strategy.values_of(variable, call);
  }

  // `run`: nullptr for the only local replica.
  static ReplicaContext context(Strategy& strategy, int replica_id, int local_replica_id,
                                ReplicaRun* run) {
    return {strategy, replica_id, local_replica_id, run};
  }
  static bool is_same(const ReplicaContext& a, const ReplicaContext& b) {
    return a.serial_ == b.serial_;
  }
  static void check_is_current(const ReplicaContext& context, std::string_view call) {
    context.check_is_current(call);
  }
  static std::shared_ptr<const void> meet(const ReplicaContext& context, const MergeOffer& offer,
                                          const Merge& merge) {
    return context.meet(offer, merge);
  }
  // ReplicaContext::merge_call() for what users call by another name, which messages have.
  template <class F, class... A>
  static auto merge(const ReplicaContext& context, std::string_view call, F&& merge_fn,
                    A&&... arguments) {
    return context.merge_as(call, std::forward<F>(merge_fn), std::forward<A>(arguments)...);
  }
};

}  // namespace cohort::internal
