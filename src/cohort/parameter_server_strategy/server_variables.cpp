// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/server_variables.h"

#include <ATen/core/TensorBody.h>

#include <optional>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/contexts.h"
#include "cohort/variable/eager_step.h"

namespace cohort {
namespace {

thread_local bool is_in_dataset_function = false;

}  // namespace

DatasetFunctionScope::DatasetFunctionScope() : is_inside_(is_in_dataset_function, true) {}
bool DatasetFunctionScope::is_on_this_thread() { return is_in_dataset_function; }

namespace detail {

void check_can_create(const Strategy& strategy, const std::string& name) {
  internal::check_can_create(&strategy, strategy.name(), "variable");
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition,
               "[strategy.variable] expected variables to be made outside of scheduled functions, "
               "got '",
               name, "' made inside one, which may run any number of times; make it before");
  COHORT_CHECK(!DatasetFunctionScope::is_on_this_thread(), ErrorCode::invalid_argument,
               "[strategy.variable] expected variables to be made outside of the function that "
               "makes a worker's dataset, got '",
               name, "' made inside one, which runs once for each worker; make it before");
}

namespace {

bool is_trainable_by(const VariableOptions& options, at::ScalarType dtype) {
  const bool is_on_read = options.synchronization == VariableSynchronization::on_read;
  return options.is_trainable.value_or(!is_on_read && at::isFloatingType(dtype));
}

}  // namespace

Variable ServerVariables::create(std::string name, const at::Tensor& initial_value,
                                 const VariableOptions& options) {
  check_can_create(strategy_, name);
  home_->check_is_no_stand_in("strategy.variable", initial_value,
                              " (initial value of '" + name + "')");
  std::optional<std::uint32_t> ps;
  if (options.colocate_with) ps = home_->servers_of(*options.colocate_with).front();
  at::Tensor stand_in = initial_value.detach().clone();
  const bool is_trainable = is_trainable_by(options, stand_in.scalar_type());
  if (is_trainable && stand_in.is_floating_point()) stand_in.requires_grad_(true);
  const Variable made = home_->create({{std::move(name), stand_in, is_trainable}}, ps)[0];
  home_->creation_watches().announce(made);
  return made;
}

Variable ServerVariables::create(std::string name, const TensorSpec& spec,
                                 const Initializer& initializer, const VariableOptions& options) {
  check_can_create(strategy_, name);
  std::optional<std::uint32_t> ps;
  if (options.colocate_with) ps = home_->servers_of(*options.colocate_with).front();
  const Variable made =
      home_->create(std::move(name), spec, initializer, is_trainable_by(options, spec.dtype), ps);
  home_->creation_watches().announce(made);
  return made;
}

internal::ModuleVariables ServerVariables::place_module(std::string_view name,
                                                        std::vector<internal::ModuleCopy> copies) {
  const std::string prefix = std::string(name) + "/";
  check_can_create(strategy_, std::string(name));
  internal::ModuleCopy& only = copies.at(0);
  for (internal::NamedTensor& each : only.tensors) each.name.insert(0, prefix);
  internal::ModuleVariables created{home_->create(only.tensors), home_};
  for (const Variable& each : created.variables) home_->creation_watches().announce(each);
  home_->keep_modes(only.use->modes);
  return created;
}

bool ServerVariables::owns(const Variable& variable) const {
  return variable.impl()->home().get() == static_cast<const VariableHome*>(home_.get());
}

std::vector<Variable> ServerVariables::all() const {
  std::vector<Variable> all;
  for (const Variable& each : home_->variables().with_tables()) {
    if (each.impl()->container() == nullptr) all.push_back(home_->handle_of(each));
  }
  return all;
}

std::vector<std::string> ServerVariables::devices_of(const Variable& variable) const {
  if (!owns(variable)) return {"CPU:0"};
  std::vector<std::string> devices;
  for (const std::uint32_t server : home_->servers_of(variable))
    devices.push_back("/job:ps/task:" + std::to_string(server) + "/CPU:0");
  return devices;
}

}  // namespace detail
}  // namespace cohort
