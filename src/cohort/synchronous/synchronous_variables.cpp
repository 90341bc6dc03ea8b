// SPDX-License-Identifier: Apache-2.0
#include "cohort/synchronous/synchronous_variables.h"

#include <ATen/core/TensorBody.h>

#include "cohort/core/device.h"
#include "cohort/core/error.h"
#include "cohort/input/per_replica.h"
#include "cohort/replicas/component_impl.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/replica_context.h"
#include "cohort/strategy/replica_trace.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/synchronous/mirrored/central_copies.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/synchronous/workers/collected_shares.h"

namespace cohort::internal {
namespace {

MirroredVariable::Traits traits_of(const std::string& name, at::ScalarType dtype,
                                   const VariableOptions& options, VariableKind kind) {
  using Synchronization = VariableSynchronization;
  const bool is_plain = kind == VariableKind::plain;
  COHORT_CHECK(options.synchronization <= Synchronization::on_read &&
                   options.aggregation <= VariableAggregation::only_first_replica,
               ErrorCode::invalid_argument,
               "[strategy.variable] expected a VariableSynchronization and a VariableAggregation, "
               "got the numbers ",
               static_cast<int>(options.synchronization), " and ",
               static_cast<int>(options.aggregation), " (variable '", name, "')");
  COHORT_CHECK(is_plain || options.synchronization != Synchronization::none,
               ErrorCode::invalid_argument,
               "[strategy.variable] expected a synchronization of variable '", name,
               "', got none; use on_write or on_read");
  const bool is_on_read = options.synchronization == Synchronization::on_read;
  const bool is_automatic = options.synchronization == Synchronization::automatic;
  return {.is_trainable = options.is_trainable.value_or(!is_on_read && at::isFloatingType(dtype)),
          .synchronization =
              is_automatic && !is_plain ? Synchronization::on_write : options.synchronization,
          .aggregation = options.aggregation};
}

}  // namespace

void SynchronousVariables::check_can_create(std::string_view name, std::string_view method) const {
  if (is_central_) {
    std::vector<std::string> used = strategy_.worker_devices();
    for (const std::string& device : strategy_.parameter_devices()) used.push_back(device);
    for (const std::string& device : used) {
      COHORT_CHECK(Device::parse(device).type == "CPU", ErrorCode::unimplemented, "[strategy.",
                   method, "] expected replicas on CPUs, got ", device, " ('", name,
                   "'): replicas on GPUs cannot share one value yet; use MirroredStrategy");
    }
  }
  internal::check_can_create(&strategy_, strategy_.name(), method);
}

Variable SynchronousVariables::create(std::string name, const at::Tensor& initial_value,
                                      const VariableOptions& options) {
  check_can_create(name, "variable");
  COHORT_CHECK(ReplicaTrace::current() == nullptr, ErrorCode::failed_precondition,
               "[strategy.variable] expected a variable that is made before a step of function(), "
               "got '",
               name, "', made inside; make it once outside and capture it, or call run()");
  COHORT_CHECK(!options.colocate_with || owns(*options.colocate_with), ErrorCode::invalid_argument,
               "[strategy.variable] expected to place variable '", name,
               "' beside one of the same strategy, got '", options.colocate_with->name(),
               "', which '", strategy_.name(), "' has not made");
  const MirroredVariable::Traits traits =
      traits_of(name, initial_value.scalar_type(), options, home_->kind());
  const auto make = [&] {
    const Variable made = home_->create(name, initial_value, traits, options.colocate_with);
    home_->creation_watches().announce(made);
    return made;
  };
  ReplicaContext* replica = get_replica_context();
  if (replica == nullptr || &replica->strategy() != &strategy_) return make();
  return StrategyAccess::merge(
      *replica, "variable",
      [&](Strategy&, const PerReplica<std::string>& names) {
        for (std::size_t i = 1; i < names.size(); ++i) {
          COHORT_CHECK(names[i] == names[0], ErrorCode::failed_precondition,
                       "[strategy.variable] expected the same variables in all replicas, got '",
                       names[0], "' in replica 0 and '", names[i], "' in replica ", i);
        }
        return make();
      },
      name);
}

Variable SynchronousVariables::create(std::string name, const TensorSpec& spec,
                                      const Initializer& initializer,
                                      const VariableOptions& options) {
  const at::Tensor value = initializer.make(spec, name, seed_of_initializers());
  return create(std::move(name), value, options);
}

ModuleVariables SynchronousVariables::place_module(std::string_view name,
                                                   std::vector<ModuleCopy> copies) {
  check_can_create(name, "replicate");
  COHORT_CHECK(get_replica_context() == nullptr || &get_replica_context()->strategy() != &strategy_,
               ErrorCode::failed_precondition,
               "[strategy.replicate] expected a call outside of run(), got one in a replica "
               "(module '",
               name, "'); make the module before");
  std::vector<std::vector<NamedTensor>> tensors;
  for (ModuleCopy& copy : copies) tensors.push_back(std::move(copy.tensors));
  ModuleVariables made{home_->create_module(name, tensors), home_};
  for (const Variable& each : made.variables) home_->creation_watches().announce(each);
  for (ModuleCopy& copy : copies) home_->modules().keep(copy.use);
  return made;
}

bool SynchronousVariables::owns(const Variable& variable) const {
  return variable.impl()->home().get() == static_cast<const VariableHome*>(home_.get());
}

std::vector<Variable> SynchronousVariables::components_of(const Variable& variable) const {
  if (!owns(variable)) return {variable};
  return component_variables(variable);
}

std::vector<std::string> SynchronousVariables::devices_of(const Variable& variable) const {
  const std::vector<std::string> devices = strategy_.parameter_devices();
  if (!owns(variable)) return {devices.front()};
  if (home_->central() != nullptr) return home_->central()->values().devices_of(variable);
  const auto* const component = dynamic_cast<const ComponentImpl*>(variable.impl().get());
  if (component == nullptr) return devices;
  return {devices[component->index() < devices.size() ? component->index() : 0]};
}

std::vector<Bytes> SynchronousVariables::exchange(std::string_view call,
                                                  const std::function<Bytes()>& make) const {
  if (!home_->has_workers()) return {make()};
  return home_->workers()->exchange({.call = call, .combines = false},
                                    [&]() -> StrategyWorkers::Message {
                                      return {{}, make()};
                                    });
}

void SynchronousVariables::copy_from_first(std::string_view call,
                                           std::span<const at::Tensor> tensors) const {
  if (home_->has_workers()) home_->workers()->broadcast({.call = call, .combines = false}, tensors);
}

std::vector<StrategyVariables::SlotRows> SynchronousVariables::own_rows_of_shared_slots(
    std::string_view call) const {
  return internal::own_rows_of_shared_slots(*home_, call);
}

std::vector<StrategyVariables::GatheredSlot> SynchronousVariables::gather_shared_slots(
    std::string_view call, std::uint64_t chunk_bytes) const {
  return internal::gather_shared_slots(*home_, call, chunk_bytes);
}

std::vector<std::vector<at::Tensor>> SynchronousVariables::values_of_replicas(
    std::string_view call, std::span<const Variable> variables) const {
  const auto own = [&] {
    std::vector<std::vector<at::Tensor>> values;
    for (const Variable& each : variables) {
      const MirroredVariable& variable = target_of(each).variable;
      values.emplace_back();
      for (std::size_t i = 0; i < variable.size(); ++i)
        values.back().push_back(variable.component(i).detach().cpu().clone());
    }
    return values;
  };
  if (!home_->has_workers() || variables.empty()) return own();
  return home_->of_all_replicas(call, names_of(variables), own);
}

}  // namespace cohort::internal
