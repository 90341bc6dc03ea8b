// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/parameter_server_strategy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/detach.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/blas.h"
#include "cohort/core/log.h"
#include "cohort/function/trace.h"
#include "cohort/rpc/messages.h"
#include "cohort/strategy/modes_scope.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/remote_variable.h"

namespace cohort {
namespace {

constexpr std::string_view kParameterServerName = "parameter_server";

thread_local bool is_making_dataset = false;

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

const RemoteVariable& remote_of(const Variable& variable) {
  const auto* remote = dynamic_cast<const RemoteVariable*>(variable.impl().get());
  COHORT_CHECK(remote != nullptr, ErrorCode::invalid_argument,
               "[strategy.variable] expected a variable of a parameter server, got '",
               variable.name(), "', which is not");
  return *remote;
}

void check_can_create(const ParameterServerStrategy& strategy, const std::string& name) {
  internal::check_can_create(&strategy, kParameterServerName, "variable");
  COHORT_CHECK(function::Trace::current() == nullptr && EagerStep::current() == nullptr,
               ErrorCode::failed_precondition,
               "[strategy.variable] expected variables to be made outside of scheduled functions, "
               "got '",
               name, "' made inside one, which may run any number of times; make it before");
  COHORT_CHECK(!MakingDataset::is_on_this_thread(), ErrorCode::invalid_argument,
               "[strategy.variable] expected variables to be made outside of the function that "
               "makes a worker's dataset, got '",
               name, "' made inside one, which runs once for each worker; make it before");
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

// State shared by the strategy, its replicated modules and its coordinator; the last of them
// destroys it.
class ParameterServerStrategy::Home final : public internal::ModuleHome,
                                            public std::enable_shared_from_this<Home> {
 public:
  Home(const ParameterServerStrategy* strategy, const ClusterResolver& resolver,
       ParameterServerOptions given)
      : owner(strategy),
        options(std::move(given)),
        connection(validated(resolver), task_of(resolver), options.cluster),
        own_address(address_of_chief(resolver)) {}

  void check_use() const override {
    const ReplicaContext* replica = get_replica_context();
    const bool is_in_replica = replica != nullptr && &replica->strategy() == owner;
    COHORT_CHECK(
        function::Trace::current() != nullptr || EagerStep::current() != nullptr || is_in_replica,
        ErrorCode::failed_precondition,
        "[strategy.replicate] the module lives on the parameter servers and can be used "
        "inside a step only; "
        "call snapshot() for an ordinary local module with the current values");
  }

  void check_outside_step(std::string_view call) const override {
    COHORT_CHECK(function::Trace::current() == nullptr && EagerStep::current() == nullptr,
                 ErrorCode::failed_precondition, "[strategy.", call,
                 "] expected a call outside of scheduled functions, got one inside, where the "
                 "module itself has the values that the step reads: use it there, and call ",
                 call, "() after join()");
  }

  std::vector<at::Tensor> read(const std::vector<Variable>& wanted) const override;
  void write(const std::vector<Variable>& wanted,
             const std::vector<at::Tensor>& values) const override;
  void upload(const std::vector<Variable>& fresh) const;
  // Creates all or none of the variables, on server `ps`, or round robin.
  std::vector<Variable> create(const std::vector<internal::NamedTensor>& wanted,
                               std::optional<std::uint32_t> ps = {});

  const ParameterServerStrategy* const owner;
  const ParameterServerOptions options;
  mutable ClusterConnection connection;
  const std::string own_address;
  VariableTable variables;
  std::atomic<bool> has_warned{false};
  CoordinatorPlace coordinator;
  std::recursive_mutex stand_ins;
  std::vector<internal::ModuleModes> modes;  // of replicated modules; guarded by stand_ins

 private:
  Variable make(const internal::NamedTensor& wanted, std::uint32_t ps) COHORT_REQUIRES(creation_);
  void publish(const std::vector<Variable>& fresh);

  // Held until the servers have accepted new variables, since only then the round robin advances.
  Mutex creation_;
  std::uint64_t round_robin_ COHORT_GUARDED_BY(creation_) = 0;  // number of variables placed so far
  std::uint64_t last_id_ COHORT_GUARDED_BY(creation_) = 0;
};

std::vector<at::Tensor> ParameterServerStrategy::Home::read(
    const std::vector<Variable>& wanted) const {
  internal::check_not_mixing(owner, kParameterServerName, "read");
  std::map<std::uint32_t, std::vector<std::size_t>> by_ps;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    by_ps[remote_of(wanted[i]).placement().ps].push_back(i);
  std::vector<at::Tensor> values(wanted.size());
  for (const auto& [ps, positions] : by_ps) {
    rpc::PullRequest request;
    for (const std::size_t i : positions)
      request.variables.push_back(remote_of(wanted[i]).placement().id);
    const std::string task = "ps:" + std::to_string(ps);
    rpc::Frame reply = connection.ps(ps).data->call(
        rpc::to_frame(request), connection.data_deadline(), "reading variables of " + task);
    COHORT_CHECK(reply.tensors.size() == positions.size(), ErrorCode::data_loss,
                 "[strategy.read] expected ", positions.size(), " values from ", task, ", got ",
                 reply.tensors.size());
    for (std::size_t k = 0; k < positions.size(); ++k)
      values[positions[k]] = std::move(reply.tensors[k]);
  }
  return values;
}

void ParameterServerStrategy::Home::write(const std::vector<Variable>& wanted,
                                          const std::vector<at::Tensor>& values) const {
  internal::check_not_mixing(owner, kParameterServerName, "load");
  std::map<std::uint32_t, rpc::PushRequest> by_ps;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const RemotePlacement& placement = remote_of(wanted[i]).placement();
    rpc::Effect effect{.kind = rpc::Effect::Kind::assign, .variable = placement.id};
    effect.tensors.push_back(values[i]);
    by_ps[placement.ps].effects.push_back(std::move(effect));
  }
  for (auto& [ps, push] : by_ps) {
    connection.ps(ps).data->call(rpc::to_frame(std::move(push)), connection.data_deadline(),
                                 "assigning variables of ps:" + std::to_string(ps));
  }
}

void ParameterServerStrategy::Home::upload(const std::vector<Variable>& fresh) const {
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
    const rpc::Connection link = connection.ps(ps);
    try {
      link.control->create_variables(specs, connection.control_deadline());
    } catch (const Error& error) {
      if (error.cause() != ErrorCause::handle_lost) throw;
      throw ps_was_restarted(ps);
    }
    link.data->call(rpc::to_frame(std::move(push)), connection.data_deadline(),
                    "uploading variables to ps:" + std::to_string(ps));
  }
}

Variable ParameterServerStrategy::Home::make(const internal::NamedTensor& wanted,
                                             std::uint32_t ps) {
  RemotePlacement placement{.id = ++last_id_, .ps = ps};
  // Weak, so that a variable does not keep the connections of a destroyed strategy alive.
  std::weak_ptr<Home> home = weak_from_this();
  placement.requester = [home, ps] {
    const std::shared_ptr<Home> alive = home.lock();
    COHORT_CHECK(alive != nullptr, ErrorCode::failed_precondition,
                 "[strategy.variable] the variable's strategy has been destroyed; keep it as long "
                 "as its variables");
    return alive->connection.ps(ps).data;
  };
  placement.check_use = [strategy = owner](std::string_view method) {
    internal::check_not_mixing(strategy, kParameterServerName, method);
  };
  placement.is_in_run = [strategy = owner] {
    const ReplicaContext* replica = get_replica_context();
    return replica != nullptr && &replica->strategy() == strategy;
  };
  placement.deadline = [timeout = options.cluster.data_timeout] {
    return Deadline::after(timeout);
  };
  return Variable(std::make_shared<RemoteVariable>(wanted.name, wanted.tensor, wanted.is_trainable,
                                                   std::move(placement)));
}

std::vector<Variable> ParameterServerStrategy::Home::create(
    const std::vector<internal::NamedTensor>& wanted, std::optional<std::uint32_t> ps) {
  connection.connect_ps();
  const Lock lock(creation_);
  std::vector<Variable> made;
  for (const internal::NamedTensor& each : wanted) {
    const std::uint64_t next = (round_robin_ + made.size()) % connection.num_ps();
    made.push_back(make(each, ps.value_or(static_cast<std::uint32_t>(next))));
  }
  publish(made);
  if (!ps) round_robin_ += made.size();
  return made;
}

// Adds the variables only after their servers hold them, since run() reads all of them. Checks
// names and memory before the upload, so that servers do not keep variables that are refused.
void ParameterServerStrategy::Home::publish(const std::vector<Variable>& fresh) {
  VariableTable alone;
  for (const Variable& variable : fresh) {
    variables.check_new(variable);
    alone.add(variable);
  }
  upload(fresh);
  for (const Variable& variable : fresh) variables.add(variable);
}

MakingDataset::MakingDataset() : was_on_this_thread_(std::exchange(is_making_dataset, true)) {}
MakingDataset::~MakingDataset() { is_making_dataset = was_on_this_thread_; }
bool MakingDataset::is_on_this_thread() { return is_making_dataset; }

ParameterServerStrategy::ParameterServerStrategy(const ClusterResolver& resolver,
                                                 ParameterServerOptions options)
    : home_(std::make_shared<Home>(this, resolver, std::move(options))) {
  warn_of_slow_blas();
}

ParameterServerStrategy::~ParameterServerStrategy() = default;

Variable ParameterServerStrategy::variable(std::string name, const at::Tensor& initial_value,
                                           VariableOptions options) {
  COHORT_CHECK(initial_value.defined(), ErrorCode::invalid_argument,
               "[strategy.variable] expected an initial value, got an undefined tensor (variable '",
               name, "')");
  check_can_create(*this, name);
  std::optional<std::uint32_t> ps;
  if (options.colocate_with) {
    const Variable& neighbour = *options.colocate_with;
    ps = remote_of(neighbour).placement().ps;
    const auto* known = home_->variables.find(neighbour.tensor());
    COHORT_CHECK(known != nullptr, ErrorCode::failed_precondition,
                 "[strategy.variable] expected a variable of this strategy in "
                 "VariableOptions::colocate_with, got '",
                 neighbour.name(), "' of another (mixing strategies); make both with one strategy");
  }
  at::Tensor stand_in = initial_value.detach().clone();
  if (options.is_trainable && stand_in.is_floating_point()) stand_in.requires_grad_(true);
  return home_->create({{std::move(name), stand_in, options.is_trainable}}, ps)[0];
}

Variable ParameterServerStrategy::variable(std::string name, const TensorSpec& spec,
                                           const Initializer& initializer,
                                           VariableOptions options) {
  const at::Tensor initial_value = initializer.make(spec, name, seed());
  return variable(std::move(name), initial_value, std::move(options));
}

std::vector<Variable> ParameterServerStrategy::create_variables(
    const std::string& name, const std::vector<internal::NamedTensor>& tensors) {
  check_can_create(*this, name);
  std::vector<internal::NamedTensor> wanted = tensors;
  for (internal::NamedTensor& each : wanted) each.name = name + "/" + each.name;
  return home_->create(wanted);
}

Nest ParameterServerStrategy::reduce(const Nest& value) const {
  internal::check_cross_replica_or_default(*this, "reduce");
  return value;
}

std::vector<std::string> ParameterServerStrategy::parameter_devices() const {
  std::vector<std::string> devices;
  for (std::uint32_t i = 0; i < home_->connection.num_ps(); ++i)
    devices.push_back("/job:ps/task:" + std::to_string(i));
  return devices;
}

std::string_view ParameterServerStrategy::name() const { return kParameterServerName; }

std::shared_ptr<const InputHost> ParameterServerStrategy::input_host() {
  internal::throw_error(ErrorCode::unimplemented,
                        "[strategy.input] expected a synchronous strategy, got 'parameter_server', "
                        "whose workers read "
                        "their own input: use ClusterCoordinator::create_per_worker_dataset()");
}

void ParameterServerStrategy::run_replicas(const std::function<void(ReplicaContext&)>& body) {
  std::unique_lock<std::recursive_mutex> stand_ins;
  std::optional<ModesScope> modes;
  if (function::Trace::current() == nullptr && EagerStep::current() == nullptr) {
    if (!home_->has_warned.exchange(true)) {
      log_warn(
          "ParameterServerStrategy::run outside a scheduled function runs on the coordinator; "
          "use ClusterCoordinator::schedule to run on the workers");
    }
    // Without the lock, a trace in another thread could change the stand-ins.
    stand_ins = lock_stand_ins();
    modes.emplace(*this);
    load_stand_ins();
  }
  internal::in_replica_context(*this, 0, body);
}

std::unique_lock<std::recursive_mutex> ParameterServerStrategy::lock_stand_ins() const {
  return std::unique_lock(home_->stand_ins);
}

void ParameterServerStrategy::keep_modes(internal::ModuleModes modes) {
  const auto lock = lock_stand_ins();
  home_->modes.push_back(std::move(modes));
}

std::vector<std::vector<bool>> ParameterServerStrategy::module_modes() const {
  std::vector<std::vector<bool>> all;
  for (const internal::ModuleModes& modes : home_->modes) all.push_back(modes.read());
  return all;
}

void ParameterServerStrategy::set_module_modes(const std::vector<std::vector<bool>>& modes) const {
  for (std::size_t i = 0; i < modes.size(); ++i) home_->modes[i].write(modes[i]);
}

std::vector<at::Tensor> ParameterServerStrategy::load_stand_ins() const {
  const std::vector<Variable> all = home_->variables.variables();
  std::vector<at::Tensor> values = home_->read(all);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < all.size(); ++i) all[i].tensor().detach().copy_(values[i]);
  return values;
}

ClusterConnection& ParameterServerStrategy::connection() { return home_->connection; }
std::shared_ptr<void> ParameterServerStrategy::shared_state() const { return home_; }
const std::string& ParameterServerStrategy::own_address() const { return home_->own_address; }
const VariableTable& ParameterServerStrategy::variables() const { return home_->variables; }
CoordinatorPlace& ParameterServerStrategy::coordinator_place() { return home_->coordinator; }
std::uint64_t ParameterServerStrategy::seed() const { return home_->options.cluster.seed; }
std::shared_ptr<internal::ModuleHome> ParameterServerStrategy::home() const { return home_; }

}  // namespace cohort
