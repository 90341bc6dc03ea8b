// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/parameter_server_home.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/detach.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/cluster/resolver_answers.h"
#include "cohort/cluster/validation.h"
#include "cohort/core/log.h"
#include "cohort/function/trace.h"
#include "cohort/function/variable_read.h"
#include "cohort/parameter_server_strategy/filled_stand_ins.h"
#include "cohort/rpc/messages.h"
#include "cohort/strategy/contexts.h"
#include "cohort/strategy/eval_mode.h"
#include "cohort/variable/eager_step.h"

namespace cohort::detail {
namespace {

constexpr std::string_view kStrategy = "parameter_server";

std::string task_of(const ClusterResolver& resolver) {
  const std::optional<std::string> type = resolver.task_type();
  if (!type) return "chief:0";
  return *type + ":" + std::to_string(resolver.task_id().value_or(0));
}

std::string address_of_chief(const ClusterResolver& resolver) {
  const std::optional<std::string> type = resolver.task_type();
  const std::int64_t index = resolver.task_id().value_or(0);
  const ClusterSpec spec = resolver.cluster_spec();
  if (type != "chief" || !spec.has_task(*type, index)) return "";
  return spec.task_address(*type, index);
}

std::shared_ptr<const ClusterResolver> validated(const ClusterResolver& resolver) {
  resolver.validate();
  auto answers = cluster::answers_of(resolver);
  validate_parameter_server_cluster(answers->cluster_spec(), answers->task_type(),
                                    answers->task_id());
  return answers;
}

}  // namespace

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         const ClusterResolver& resolver,
                                         ParameterServerOptions options)
    : ParameterServerHome(owner, validated(resolver), std::move(options)) {}

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         std::shared_ptr<const ClusterResolver> resolver,
                                         ParameterServerOptions options)
    : ParameterServerHome(owner, resolver, options,
                          std::make_unique<ClusterConnection>(
                              resolver->cluster_spec(), task_of(*resolver), options.cluster)) {}

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         std::shared_ptr<const ClusterResolver> resolver,
                                         ParameterServerOptions options,
                                         std::unique_ptr<ClusterConnection> connection)
    : RemoteHome(connection->servers()),
      owner_(owner),
      options_(std::move(options)),
      connection_(std::move(connection)),
      resolver_(std::move(resolver)),
      own_address_(address_of_chief(*resolver_)),
      unused_(variables_, placement(), *connection_->servers(),
              [this](const std::function<void()>& body) { return try_alone(body); }) {}

// A run of the stand-ins notes variables by their addresses, also on this thread.
bool ParameterServerHome::try_alone(const std::function<void()>& body) const {
  const std::unique_lock alone(stand_ins_, std::try_to_lock);
  if (!alone.owns_lock() || EagerStep::current() != nullptr) return false;
  body();
  return true;
}

void ParameterServerHome::check_is_no_stand_in(std::string_view call, const at::Tensor& value,
                                               std::string_view detail) const {
  if (EagerStep::current() != nullptr) return;
  VariableTable::EntryPtr entry = variables_.find(value);
  for (const at::Tensor& leaf : function::leaves_of(value))
    if (entry == nullptr) entry = variables_.find(leaf);
  if (entry == nullptr) return;
  internal::throw_error(
      ErrorCode::invalid_argument, "[", call, "] expected a value, got tensor() of variable '",
      entry->variable.name(), "', or what was computed from it", detail,
      ": outside of a step it is a stand-in without the current value; take read(), use the "
      "variable inside the step, or return its detach().clone() from run()");
}

void ParameterServerHome::write(std::span<const VariableWrite> writes) {
  for (const VariableWrite& write : writes) {
    const std::string detail = " (to be assigned to '" + write.variable.name() + "')";
    check_is_no_stand_in("variable.assign", write.value, detail);
    if (write.row_ids.defined()) check_is_no_stand_in("variable.scatter", write.row_ids, detail);
  }
  RemoteHome::write(writes);
}

void ParameterServerHome::check_use(std::string_view method, std::string_view variable) const {
  internal::check_not_mixing(owner_, kStrategy, method, {"variable", variable});
}

void ParameterServerHome::check_module_use(std::string_view /*module*/) const {
  const ReplicaContext* replica = get_replica_context();
  const bool is_in_replica = replica != nullptr && &replica->strategy() == owner_;
  COHORT_CHECK(
      function::Trace::current() != nullptr || EagerStep::current() != nullptr || is_in_replica,
      ErrorCode::failed_precondition,
      "[strategy.replicate] the module lives on the parameter servers and can be used "
      "inside a step only; "
      "call snapshot() for an ordinary local module with the current values");
}

// Steps restore the modes of all modules.
void ParameterServerHome::note_module_use(const std::shared_ptr<internal::ModuleUse>& module) {
  internal::EvalModeScope::note_use(*module);
}

void ParameterServerHome::check_outside_step(std::string_view call) const {
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a call outside of scheduled functions, got one inside, where the "
               "module itself has the values that the step reads: use it there, and call ",
               call, "() after join()");
}

void ParameterServerHome::set_forget_functions(std::function<void()> forget) {
  const Lock lock(forget_mutex_);
  forget_functions_ = std::move(forget);
}

void ParameterServerHome::drop_unused() {
  std::function<void()> forget;
  {
    const Lock lock(forget_mutex_);
    forget = forget_functions_;
  }
  if (forget) forget();
  unused_.collect();
}

std::uint64_t ParameterServerHome::new_number() {
  const Lock lock(creation_);
  return ++last_id_;
}

void ParameterServerHome::take_snapshot(std::uint64_t number, std::span<const Variable> variables) {
  std::vector<rpc::MemberId> servers(connection_->num_ps());
  std::iota(servers.begin(), servers.end(), rpc::MemberId{0});
  RemoteHome::take_snapshot(number, variables, servers);
}

void ParameterServerHome::drop_snapshot(std::uint64_t number) {
  std::vector<rpc::Slice> everywhere;
  for (std::uint32_t ps = 0; ps < connection_->num_ps(); ++ps)
    everywhere.push_back({.variable = number, .server = ps});
  unused_.drop(everywhere);
}

std::vector<std::uint32_t> ParameterServerHome::servers_of(const Variable& variable) const {
  RemoteVariable::of(variable);  // throws for another kind
  COHORT_CHECK(variable.impl()->home().get() == this, ErrorCode::failed_precondition,
               "[strategy.variable] expected a variable of this strategy in "
               "VariableOptions::colocate_with, got '",
               variable.name(), "' of another (mixing strategies); make both with one strategy");
  std::vector<std::uint32_t> servers;
  for (const rpc::Slice& slice : slices_of(variable))
    servers.push_back(static_cast<std::uint32_t>(slice.server));
  return servers;
}

void ParameterServerHome::run_with_stand_ins(EagerStep& step, std::string_view where,
                                             const std::function<void()>& body) {
  const ModesScope modes(*this);
  load_stand_ins(step);
  try {
    body();
    write_back_stand_ins(where);
  } catch (...) {
    drop_graphs();
    throw;
  }
}

// The step notes the values, to find out later which ones it has written.
void ParameterServerHome::load_stand_ins(EagerStep& step) const {
  const std::vector<Variable> all = variables_.variables();
  const std::vector<at::Tensor> values = read(all);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].tensor().detach().copy_(values[i]);
    step.note(*all[i].impl(), values[i]);
  }
}

void ParameterServerHome::write_back_stand_ins(std::string_view where) const {
  const std::vector<Variable> all = variables_.variables();
  for (const Variable& variable : all) {
    // A trace refuses such a value too.
    COHORT_CHECK(variable.tensor().is_leaf(), ErrorCode::invalid_argument, "[", where,
                 "] expected steps that write values without a graph into variables, got that "
                 "variable '",
                 variable.name(),
                 "' was written in place with a value that requires a gradient: the next step's "
                 "gradients would flow through this one too. Write value.detach(), write under "
                 "at::NoGradGuard, or use assign()");
  }
  write_back(all);
}

void ParameterServerHome::drop_graphs() const {
  for (const Variable& variable : variables_.variables())
    if (!variable.tensor().is_leaf()) variable.tensor().detach_();
}

void ParameterServerHome::keep_modes(internal::ModuleModes modes) {
  const auto lock = lock_stand_ins();
  modes_.push_back(std::move(modes));
}

std::vector<std::vector<bool>> ParameterServerHome::module_modes() const {
  std::vector<std::vector<bool>> all;
  for (const internal::ModuleModes& modes : modes_) all.push_back(modes.read());
  return all;
}

void ParameterServerHome::set_module_modes(const std::vector<std::vector<bool>>& modes) const {
  for (std::size_t i = 0; i < modes.size(); ++i) modes_[i].write(modes[i]);
}

void ParameterServerHome::warn_of_local_run() {
  if (has_warned_.exchange(true)) return;
  log_warn(
      "ParameterServerStrategy::run outside a scheduled function runs on the coordinator; "
      "use ClusterCoordinator::schedule to run on the workers");
}

}  // namespace cohort::detail
