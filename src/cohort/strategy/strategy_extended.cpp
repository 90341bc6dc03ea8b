// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/strategy_extended.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>

#include "cohort/core/device.h"
#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/core/string_tensor.h"
#include "cohort/replicas/component_impl.h"
#include "cohort/replicas/replica_devices.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/strategy_access.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_home.h"
#include "cohort/workers/worker_values.h"

namespace cohort {
namespace {

using internal::DeviceScope;
using internal::Effect;
using internal::StrategyAccess;

std::vector<std::string> devices_of_replicas(const Strategy& strategy) {
  if (&strategy == &default_strategy()) return {"CPU:0"};
  return strategy.worker_devices();
}

std::vector<std::string> devices_of_own(const Strategy& strategy, const Variable& variable,
                                        std::string_view call) {
  StrategyAccess::check_takes(strategy, variable, call);
  return StrategyAccess::devices_of(strategy, variable);
}

// Every CPU:n exists, as for the strategies themselves.
void check_is_there(const std::string& name, const Strategy& strategy) {
  const Device device = Device::parse(name);
  const std::vector<std::string> known = devices_of_replicas(strategy);
  const bool is_there =
      (device.is_local() && device.type == "CPU") || std::ranges::find(known, name) != known.end();
  COHORT_CHECK(is_there, ErrorCode::invalid_argument, "[strategy.reduce_to] expected a device of '",
               strategy.name(), "' or a CPU of this process as a destination, got ", name);
}

bool is_host_value(const Nest& value) { return value.is_leaf() && !value.is_tensor(); }

Nest clone_of(const Nest& value) {
  return value.map_leaves([](const Nest& leaf) {
    return leaf.is_tensor() && leaf.tensor().defined() ? Nest(leaf.tensor().clone()) : leaf;
  });
}

// The value itself if it is on the device.
Nest moved_to(const std::string& device, const Nest& value) {
  const c10::Device target = internal::torch_device(Device::parse(device));
  return value.map_leaves([&](const Nest& leaf) {
    const bool is_numeric =
        leaf.is_tensor() && leaf.tensor().defined() && !StringTensor::is(leaf.tensor());
    return is_numeric ? Nest(internal::on_device(leaf.tensor(), target)) : leaf;
  });
}

// A host value is one, wherever it goes.
Mirrored<Nest> copied_to(std::vector<std::string> devices, const Nest& value) {
  if (is_host_value(value)) devices.resize(1);
  const bool is_one = devices.size() == 1;
  std::vector<Nest> copies;
  for (const std::string& device : devices)
    copies.push_back(moved_to(device, is_one ? value : clone_of(value)));
  return {std::move(copies), std::move(devices)};
}

Mirrored<> tensors_of(const Mirrored<Nest>& value) {
  std::vector<at::Tensor> tensors;
  for (const Nest& copy : value.local_results()) tensors.push_back(copy.tensor());
  return {std::move(tensors), value.devices()};
}

void check_is_updated_here(const Strategy& strategy, const Variable& variable,
                           std::string_view call) {
  const bool is_updated = !StrategyAccess::traits(strategy).updates_only_own_variables ||
                          StrategyAccess::owns(strategy, variable);
  COHORT_CHECK(is_updated, ErrorCode::invalid_argument, "[strategy.", call,
               "] expected a variable of '", strategy.name(), "', got '", variable.name(),
               "', which is not; make it with strategy.variable()");
}

// Checks all, then assigns to each component. `call` is the method.
void assign_each(Strategy& strategy, const Variable& variable, Effect::Kind kind,
                 const PerReplica<at::Tensor>& values, std::string_view call) {
  internal::check_can_run(strategy, call);
  check_is_updated_here(strategy, variable, call);
  const std::size_t components = StrategyAccess::components_of(strategy, variable).size();
  // Where a variable has one value, it takes that of the first replica.
  const std::size_t expected =
      components > 1 ? components
                     : static_cast<std::size_t>(StrategyAccess::num_local_replicas(strategy));
  COHORT_CHECK(!values.is_wrapped() || values.size() == expected, ErrorCode::invalid_argument,
               "[strategy.assign] expected ", expected,
               " values, one for each replica, of variable '", variable.name(), "', got ",
               values.size());
  const bool is_on_read = components > 1 && variable.impl()->replication().synchronization ==
                                                VariableSynchronization::on_read;
  COHORT_CHECK(!is_on_read || !values.is_wrapped() || values.is_mirrored(),
               ErrorCode::invalid_argument, "[strategy.assign] expected one value for variable '",
               variable.name(),
               "', which is synchronized on read, got a value of each replica; assign them inside "
               "run()");
  const auto assign = [&](const at::Tensor& value) {
    const VariableWrite write{variable, kind, value};
    write_values({&write, 1});
  };
  if (!values.is_wrapped() || is_on_read) return assign(values[0]);
  for (std::size_t i = 0; i < components; ++i)
    variable::check_assign(kind, variable.name(), variable.spec(), values[i]);
  for (std::size_t i = 0; i < components; ++i) {
    internal::in_update(strategy, static_cast<int>(i), [&] { assign(values[i]); });
  }
}

}  // namespace

Destinations::Destinations(std::string_view device)
    : devices_({Device::parse(device).to_string()}) {}

Destinations::Destinations(const at::Tensor& tensor) {
  COHORT_CHECK(tensor.defined(), ErrorCode::invalid_argument,
               "[strategy.reduce_to] expected a destination, got an undefined tensor");
  const at::Device device = tensor.device();
  devices_.push_back(
      Device{.type = device.is_cuda() ? "GPU" : "CPU", .index = std::max<int>(device.index(), 0)}
          .to_string());
}

std::vector<std::string> Destinations::of(const Strategy& strategy) const {
  std::vector<std::string> devices = devices_;
  if (variable_) {
    devices = devices_of_own(strategy, *variable_, "reduce_to");
  } else if (components_ > 0) {
    devices = devices_of_replicas(strategy);
    COHORT_CHECK(components_ <= devices.size(), ErrorCode::invalid_argument,
                 "[strategy.reduce_to] expected a destination of at most ", devices.size(),
                 " components, as '", strategy.name(), "' has replicas, got one of ", components_);
    devices.resize(components_);
  }
  for (const std::string& device : devices) check_is_there(device, strategy);
  return devices;
}

Mirrored<Nest> StrategyExtended::reduce_to(ReduceOpOrName op, const PerReplica<Nest>& value,
                                           const Destinations& destinations,
                                           const CommunicationOptions& options) {
  internal::check_can_run(strategy_, "reduce_to");
  options.check();
  std::vector<std::string> devices = destinations.of(strategy_);
  return copied_to(std::move(devices), strategy_.reduce(op, value));
}

Mirrored<> StrategyExtended::reduce_to(ReduceOpOrName op, const PerReplica<at::Tensor>& value,
                                       const Destinations& destinations,
                                       const CommunicationOptions& options) {
  return tensors_of(reduce_to(op, internal::as_nests(value), destinations, options));
}

Mirrored<> StrategyExtended::reduce_to(ReduceOpOrName op, const Variable& value,
                                       const Destinations& destinations,
                                       const CommunicationOptions& options) {
  internal::check_can_run(strategy_, "reduce_to");
  return reduce_to(op, StrategyAccess::values_of(strategy_, value, "reduce_to"), destinations,
                   options);
}

std::vector<Mirrored<>> StrategyExtended::batch_reduce_to(
    ReduceOpOrName op, const std::vector<ValueAndDestinations>& pairs,
    const CommunicationOptions& options) {
  internal::check_can_run(strategy_, "batch_reduce_to");
  options.check();
  for (const auto& [value, destinations] : pairs) destinations.of(strategy_);
  std::vector<Mirrored<>> results;
  for (const auto& [value, destinations] : pairs)
    results.push_back(reduce_to(op, value, destinations, options));
  return results;
}

Mirrored<Nest> StrategyExtended::broadcast_to(const Nest& value, const Destinations& destinations) {
  internal::check_can_run(strategy_, "broadcast_to");
  return copied_to(destinations.of(strategy_), is_host_value(value) ? value : clone_of(value));
}

Mirrored<> StrategyExtended::broadcast_to(const at::Tensor& value,
                                          const Destinations& destinations) {
  return tensors_of(broadcast_to(Nest(value), destinations));
}

std::size_t StrategyExtended::local_replicas() const {
  return static_cast<std::size_t>(StrategyAccess::num_local_replicas(strategy_));
}

const ReplicaContext* StrategyExtended::replica_here() const {
  const ReplicaContext* const replica = get_replica_context();
  const bool is_own =
      replica != nullptr && &strategy_ != &default_strategy() && &replica->strategy() == &strategy_;
  return is_own ? replica : nullptr;
}

void StrategyExtended::check_same_variable(const PerReplica<Variable>& variables) {
  for (std::size_t i = 1; i < variables.size(); ++i) {
    COHORT_CHECK(variables[i] == variables[0], ErrorCode::invalid_argument,
                 "[strategy.update] expected the same variable in all replicas, got '",
                 variables[0].name(), "' in replica 0 and '", variables[i].name(), "' in replica ",
                 i);
  }
}

void StrategyExtended::update_each(
    const Variable& variable, const std::function<void(const Variable&, std::size_t)>& body) const {
  internal::check_can_run(strategy_, "update");
  check_is_updated_here(strategy_, variable, "update");
  const std::vector<Variable> components = StrategyAccess::components_of(strategy_, variable);
  const std::vector<std::string> devices = StrategyAccess::devices_of(strategy_, variable);
  for (std::size_t i = 0; i < components.size(); ++i) {
    const DeviceScope device(internal::torch_device(Device::parse(devices.at(i % devices.size()))));
    internal::in_update(strategy_, static_cast<int>(i), [&] { body(components[i], i); });
  }
}

void StrategyExtended::update_each_device(const std::vector<std::string>& devices,
                                          const std::function<void(std::size_t)>& body) const {
  internal::check_can_run(strategy_, "update_non_slot");
  const bool is_on_all = StrategyAccess::traits(strategy_).runs_on_all_devices;
  COHORT_CHECK(!devices.empty() && (!is_on_all || devices == strategy_.worker_devices()),
               ErrorCode::invalid_argument,
               "[strategy.update_non_slot] expected the devices of non_slot_devices(), got ",
               devices.size(), devices.empty() ? "" : ", the first one " + devices.front());
  for (std::size_t i = 0; i < (is_on_all ? devices.size() : 1); ++i) {
    const DeviceScope device(internal::torch_device(Device::parse(devices[i])));
    internal::in_update(strategy_, static_cast<int>(i), [&] { body(i); });
  }
}

std::vector<std::string> StrategyExtended::non_slot_devices(
    const std::vector<Variable>& variables) const {
  if (StrategyAccess::traits(strategy_).runs_on_all_devices) return strategy_.worker_devices();
  const auto smallest = std::ranges::min_element(variables, {}, &Variable::name);
  COHORT_CHECK(smallest != variables.end(), ErrorCode::invalid_argument,
               "[strategy.non_slot_devices] expected at least one variable of '", strategy_.name(),
               "', got none");
  return devices_of_own(strategy_, *smallest, "non_slot_devices");
}

at::Tensor StrategyExtended::read_var(const Variable& variable) const {
  internal::check_can_run(strategy_, "read_var");
  return variable.read();
}

void StrategyExtended::assign(const Variable& variable,
                              const PerReplica<at::Tensor>& values) const {
  assign_each(strategy_, variable, Effect::Kind::assign, values, "assign");
}

void StrategyExtended::assign_add(const Variable& variable,
                                  const PerReplica<at::Tensor>& values) const {
  assign_each(strategy_, variable, Effect::Kind::assign_add, values, "assign_add");
}

void StrategyExtended::assign_sub(const Variable& variable,
                                  const PerReplica<at::Tensor>& values) const {
  assign_each(strategy_, variable, Effect::Kind::assign_sub, values, "assign_sub");
}

std::vector<std::string> StrategyExtended::devices(const Variable& variable) const {
  return devices_of_own(strategy_, variable, "devices");
}

Variable StrategyExtended::value_container(const Variable& component) const {
  return internal::container_of(component).value_or(component);
}

bool StrategyExtended::in_multi_worker_mode() const {
  return StrategyAccess::traits(strategy_).is_multi_worker;
}

// Workers without a coordinator share the variables that the first one makes.
bool StrategyExtended::should_init() const {
  const internal::StrategyTraits traits = StrategyAccess::traits(strategy_);
  return !traits.is_asynchronous || traits.is_first_worker;
}

bool StrategyExtended::should_checkpoint() const {
  return StrategyAccess::traits(strategy_).is_first_worker;
}

bool StrategyExtended::between_graph() const {
  const std::optional<bool> is_between_graph = StrategyAccess::traits(strategy_).is_between_graph;
  COHORT_CHECK(is_between_graph.has_value(), ErrorCode::unimplemented,
               "[strategy.between_graph] expected a strategy of workers, got '", strategy_.name(),
               "', which has no such property");
  return *is_between_graph;
}

}  // namespace cohort
