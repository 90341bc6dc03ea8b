// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <ATen/core/TensorBody.h>

#include <mutex>
#include <utility>

#include "cohort/core/blas.h"
#include "cohort/function/trace.h"
#include "cohort/input/input_host.h"
#include "cohort/strategy/dataset_function_scope.h"
#include "cohort/strategy/parameter_server_home.h"
#include "cohort/strategy/replicas/contexts.h"
#include "cohort/variable/eager_step.h"

namespace cohort {
namespace {

constexpr std::string_view kParameterServerName = "parameter_server";

void check_can_create(const ParameterServerStrategy& strategy, const std::string& name) {
  internal::check_can_create(&strategy, kParameterServerName, "variable");
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

}  // namespace

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver,
                                                 ParameterServerOptions options)
    : home_(std::make_shared<detail::ParameterServerHome>(this, resolver, std::move(options))) {
  warn_of_slow_blas();
}

ParameterServerStrategy::~ParameterServerStrategy() {
  if (home_) home_->forget_owner();
}

Variable ParameterServerStrategy::create_variable(std::string name, const at::Tensor& initial_value,
                                                  const VariableOptions& options) {
  COHORT_CHECK(initial_value.defined(), ErrorCode::invalid_argument,
               "[strategy.variable] expected an initial value, got an undefined tensor (variable '",
               name, "')");
  check_can_create(*this, name);
  home_->check_is_no_stand_in("strategy.variable", initial_value,
                              " (initial value of '" + name + "')");
  std::optional<std::uint32_t> ps;
  if (options.colocate_with) ps = home_->ps_of(*options.colocate_with);
  at::Tensor stand_in = initial_value.detach().clone();
  const bool is_trainable = options.is_trainable.value_or(true);
  if (is_trainable && stand_in.is_floating_point()) stand_in.requires_grad_(true);
  return home_->create({{std::move(name), stand_in, is_trainable}}, ps)[0];
}

Variable ParameterServerStrategy::create_variable(std::string name, const TensorSpec& spec,
                                                  const Initializer& initializer,
                                                  const VariableOptions& options) {
  check_can_create(*this, name);
  std::optional<std::uint32_t> ps;
  if (options.colocate_with) ps = home_->ps_of(*options.colocate_with);
  return home_->create(std::move(name), spec, initializer, options.is_trainable.value_or(true), ps);
}

internal::ModuleVariables ParameterServerStrategy::place_module(
    std::string_view name, std::vector<internal::ModuleCopy> copies) {
  const std::string prefix = std::string(name) + "/";
  check_can_create(*this, std::string(name));
  internal::ModuleCopy& only = copies.at(0);
  for (internal::NamedTensor& each : only.tensors) each.name.insert(0, prefix);
  internal::ModuleVariables created{home_->create(only.tensors), home_};
  home_->keep_modes(only.use->modes);
  return created;
}

std::vector<std::string> ParameterServerStrategy::parameter_devices() const {
  std::vector<std::string> devices;
  for (std::uint32_t i = 0; i < home_->connection().num_ps(); ++i)
    devices.push_back("/job:ps/task:" + std::to_string(i));
  return devices;
}

bool ParameterServerStrategy::owns(const Variable& variable) const {
  return variable.impl()->home().get() == static_cast<const VariableHome*>(home_.get());
}

std::vector<std::string> ParameterServerStrategy::devices_of(const Variable& variable) const {
  if (!owns(variable)) return {"CPU:0"};
  return {"/job:ps/task:" + std::to_string(home_->ps_of(variable)) + "/CPU:0"};
}

std::string_view ParameterServerStrategy::name() const { return kParameterServerName; }

std::shared_ptr<const input::InputHost> ParameterServerStrategy::input_host() {
  internal::throw_error(ErrorCode::unimplemented,
                        "[strategy.input] expected a synchronous strategy, got 'parameter_server', "
                        "whose workers read their own input: use "
                        "ClusterCoordinator::create_per_worker_dataset() for a dataset, and pass "
                        "other values to ClusterCoordinator::schedule() as arguments");
}

void ParameterServerStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (function::Trace::current() != nullptr || EagerStep::current() != nullptr)
    return internal::in_replica_context(*this, 0, body);
  home_->warn_of_local_run();
  // Without the lock, a trace in another thread could change the stand-ins.
  const auto stand_ins = home_->lock_stand_ins();
  VariableTraffic traffic;
  EagerStep step(traffic, EagerStep::Kind::run);
  internal::in_replica_context(*this, 0, [&](ReplicaContext& context) {
    home_->run_with_stand_ins(step, "strategy.run", [&] { body(context); });
  });
}

std::uint64_t ParameterServerStrategy::next_module_seed() {
  return internal::seed_of_module(home_->options().cluster.seed, num_modules_made_.fetch_add(1));
}

}  // namespace cohort
