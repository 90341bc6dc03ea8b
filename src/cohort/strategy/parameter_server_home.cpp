// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/detail/parameter_server_home.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/detach.h>

#include <map>
#include <utility>

#include "cohort/cluster/detail/validation.h"
#include "cohort/core/log.h"
#include "cohort/function/detail/trace.h"
#include "cohort/function/detail/variable_read.h"
#include "cohort/rpc/detail/messages.h"
#include "cohort/strategy/detail/modes_scope.h"
#include "cohort/variable/detail/eager_step.h"
#include "cohort/variable/detail/remote_variable.h"

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

RemoteVariable& remote_of(const Variable& variable) {
  auto* remote = dynamic_cast<RemoteVariable*>(variable.impl().get());
  COHORT_CHECK(remote != nullptr, ErrorCode::invalid_argument,
               "[strategy.variable] expected a variable of a parameter server, got '",
               variable.name(), "', which is not");
  return *remote;
}

// For a restarted server whose old connection had not broken yet when the request was sent.
Error ps_was_restarted(std::uint32_t ps) {
  const std::string task = "ps:" + std::to_string(ps);
  return Error(ErrorCode::unavailable,
               "[strategy.variable] " + task +
                   " was restarted: its variables are lost; start the coordinator again",
               ErrorCause::handle_lost)
      .at(task);
}

ClusterSpec validated(const ClusterResolver& resolver) {
  resolver.validate();
  ClusterSpec spec = resolver.cluster_spec();
  validate_parameter_server_cluster(spec, resolver.task_type(), resolver.task_id());
  return spec;
}

}  // namespace

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         const ClusterResolver& resolver,
                                         ParameterServerOptions options)
    : owner_(owner),
      options_(std::move(options)),
      connection_(validated(resolver), task_of(resolver), options_.cluster),
      own_address_(address_of_chief(resolver)) {}

void ParameterServerHome::check_is_no_stand_in(std::string_view call, const at::Tensor& value,
                                               std::string_view detail) const {
  if (EagerStep::current() != nullptr) return;
  const VariableTable::Entry* entry = variables_.find(value);
  for (const at::Tensor& leaf : function::leaves_of(value))
    if (entry == nullptr) entry = variables_.find(leaf);
  if (entry == nullptr) return;
  internal::throw_error(
      ErrorCode::invalid_argument, "[", call, "] expected a value, got tensor() of variable '",
      entry->variable.name(), "', or what was computed from it", detail,
      ": outside of a step it is a stand-in without the current value; take read(), use the "
      "variable inside the step, or return its detach().clone() from run()");
}

void ParameterServerHome::check_use() const {
  const ReplicaContext* replica = get_replica_context();
  const bool is_in_replica = replica != nullptr && &replica->strategy() == owner_;
  COHORT_CHECK(
      function::Trace::current() != nullptr || EagerStep::current() != nullptr || is_in_replica,
      ErrorCode::failed_precondition,
      "[strategy.replicate] the module lives on the parameter servers and can be used "
      "inside a step only; "
      "call snapshot() for an ordinary local module with the current values");
}

void ParameterServerHome::check_outside_step(std::string_view call) const {
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a call outside of scheduled functions, got one inside, where the "
               "module itself has the values that the step reads: use it there, and call ",
               call, "() after join()");
}

std::vector<at::Tensor> ParameterServerHome::read(const std::vector<Variable>& wanted) const {
  internal::check_not_mixing(owner_, kStrategy, "read");
  std::map<std::uint32_t, std::vector<std::size_t>> by_ps;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    by_ps[remote_of(wanted[i]).placement().ps].push_back(i);
  std::vector<at::Tensor> values(wanted.size());
  for (const auto& [ps, positions] : by_ps) {
    rpc::PullRequest request;
    for (const std::size_t i : positions)
      request.variables.push_back(remote_of(wanted[i]).placement().id);
    const std::string task = "ps:" + std::to_string(ps);
    rpc::Frame reply = connection_.ps(ps).data->call(
        rpc::to_frame(request), connection_.data_deadline(), "reading variables of " + task);
    COHORT_CHECK(reply.tensors.size() == positions.size(), ErrorCode::data_loss,
                 "[strategy.read] expected ", positions.size(), " values from ", task, ", got ",
                 reply.tensors.size());
    for (std::size_t k = 0; k < positions.size(); ++k)
      values[positions[k]] = std::move(reply.tensors[k]);
  }
  return values;
}

void ParameterServerHome::write(const std::vector<Variable>& wanted,
                                const std::vector<at::Tensor>& values) const {
  internal::check_not_mixing(owner_, kStrategy, "load");
  std::map<std::uint32_t, rpc::PushRequest> by_ps;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const RemotePlacement& placement = remote_of(wanted[i]).placement();
    rpc::Effect effect{.kind = rpc::Effect::Kind::assign, .variable = placement.id};
    effect.tensors.push_back(values[i]);
    by_ps[placement.ps].effects.push_back(std::move(effect));
  }
  for (auto& [ps, push] : by_ps) {
    connection_.ps(ps).data->call(rpc::to_frame(std::move(push)), connection_.data_deadline(),
                                  "assigning variables of ps:" + std::to_string(ps));
  }
}

void ParameterServerHome::upload(const std::vector<Variable>& fresh) const {
  std::map<std::uint32_t, std::vector<const RemoteVariable*>> by_ps;
  for (const Variable& variable : fresh)
    by_ps[remote_of(variable).placement().ps].push_back(&remote_of(variable));
  for (const auto& [ps, remotes] : by_ps) {
    std::vector<rpc::VariableSpec> specs;
    rpc::PushRequest push;
    for (const RemoteVariable* remote : remotes) {
      specs.push_back(
          {remote->placement().id, remote->name(), remote->spec(), remote->is_trainable()});
      rpc::Effect effect{.kind = rpc::Effect::Kind::assign, .variable = remote->placement().id};
      effect.tensors.push_back(remote->tensor().detach());
      push.effects.push_back(std::move(effect));
    }
    const rpc::Connection link = connection_.ps(ps);
    try {
      link.control->create_variables(specs, connection_.control_deadline());
    } catch (const Error& error) {
      if (error.cause() != ErrorCause::handle_lost) throw;
      throw ps_was_restarted(ps);
    }
    link.data->call(rpc::to_frame(std::move(push)), connection_.data_deadline(),
                    "uploading variables to ps:" + std::to_string(ps));
  }
}

Variable ParameterServerHome::make(const internal::NamedTensor& wanted, std::uint32_t ps) {
  RemotePlacement placement{.id = ++last_id_, .ps = ps};
  // Weak, so that a variable does not keep the connections of a destroyed strategy alive.
  std::weak_ptr<ParameterServerHome> home = weak_from_this();
  placement.requester = [home, ps] {
    const std::shared_ptr<ParameterServerHome> alive = home.lock();
    COHORT_CHECK(alive != nullptr, ErrorCode::failed_precondition,
                 "[strategy.variable] the variable's strategy has been destroyed; keep it as long "
                 "as its variables");
    return alive->connection_.ps(ps).data;
  };
  placement.check_use = [strategy = owner_](std::string_view method) {
    internal::check_not_mixing(strategy, kStrategy, method);
  };
  placement.check_value = [home, name = wanted.name](const at::Tensor& value) {
    if (const std::shared_ptr<ParameterServerHome> alive = home.lock())
      alive->check_is_no_stand_in("variable.assign", value, " (to be assigned to '" + name + "')");
  };
  placement.deadline = [timeout = options_.cluster.data_timeout] {
    return Deadline::after(timeout);
  };
  return Variable(std::make_shared<RemoteVariable>(wanted.name, wanted.tensor, wanted.is_trainable,
                                                   std::move(placement)));
}

std::vector<Variable> ParameterServerHome::create(const std::vector<internal::NamedTensor>& wanted,
                                                  std::optional<std::uint32_t> ps) {
  connection_.connect_ps();
  const Lock lock(creation_);
  std::vector<Variable> made;
  for (const internal::NamedTensor& each : wanted) {
    const std::uint64_t next = (round_robin_ + made.size()) % connection_.num_ps();
    made.push_back(make(each, ps.value_or(static_cast<std::uint32_t>(next))));
  }
  publish(made);
  if (!ps) round_robin_ += made.size();
  return made;
}

// Adds the variables only after their servers hold them, since run() reads all of them. Checks
// names and memory before the upload, so that servers do not keep variables that are refused.
void ParameterServerHome::publish(const std::vector<Variable>& fresh) {
  VariableTable alone;
  for (const Variable& variable : fresh) {
    variables_.check_new(variable);
    alone.add(variable);
  }
  upload(fresh);
  for (const Variable& variable : fresh) variables_.add(variable);
}

std::uint32_t ParameterServerHome::ps_of(const Variable& variable) const {
  const std::uint32_t ps = remote_of(variable).placement().ps;
  COHORT_CHECK(variables_.find(variable.tensor()) != nullptr, ErrorCode::failed_precondition,
               "[strategy.variable] expected a variable of this strategy in "
               "VariableOptions::colocate_with, got '",
               variable.name(), "' of another (mixing strategies); make both with one strategy");
  return ps;
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

// The step notes the values, so that it is known later what it has written.
void ParameterServerHome::load_stand_ins(EagerStep& step) const {
  const std::vector<Variable> all = variables_.variables();
  const std::vector<at::Tensor> values = read(all);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].tensor().detach().copy_(values[i]);
    step.note(*all[i].impl(), values[i]);
    step.traffic().pulled_bytes += values[i].nbytes();
  }
}

void ParameterServerHome::write_back_stand_ins(std::string_view where) const {
  for (const Variable& variable : variables_.variables()) {
    // A trace refuses it too.
    COHORT_CHECK(variable.tensor().is_leaf(), ErrorCode::invalid_argument, "[", where,
                 "] expected steps that write values without a graph into variables, got that "
                 "variable '",
                 variable.name(),
                 "' was written in place with a value that requires a gradient: the next step's "
                 "gradients would flow through this one too. Write value.detach(), write under "
                 "at::NoGradGuard, or use assign()");
    remote_of(variable).write_back();
  }
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
