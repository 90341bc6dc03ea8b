// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server_strategy/parameter_server_home.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/detach.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "cohort/cluster/validation.h"
#include "cohort/core/log.h"
#include "cohort/core/start_thread.h"
#include "cohort/function/trace.h"
#include "cohort/function/variable_read.h"
#include "cohort/parameter_server_strategy/stand_in_memory.h"
#include "cohort/rpc/messages.h"
#include "cohort/strategy/contexts.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/initializer_recipe.h"

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

ClusterSpec validated(const ClusterResolver& resolver) {
  resolver.validate();
  ClusterSpec spec = resolver.cluster_spec();
  validate_parameter_server_cluster(spec, resolver.task_type(), resolver.task_id());
  return spec;
}

std::vector<std::uint64_t> ids_of(const std::vector<Variable>& variables) {
  std::vector<std::uint64_t> ids;
  for (const Variable& variable : variables) ids.push_back(RemoteVariable::of(variable).id());
  return ids;
}

// Computes the values of stand-ins on a thread of its own. Used only from one thread.
class FilledStandIns {
 public:
  FilledStandIns(const std::vector<Variable>& variables, const Initializer& initializer,
                 std::uint64_t seed) {
    thread_.add(start_thread("to compute initial values", [this, &variables, &initializer, seed] {
      try {
        for (const Variable& variable : variables)
          InitializerRecipe::fill(initializer, variable.tensor().detach(), variable.name(), seed);
      } catch (...) {
        error_ = std::current_exception();
      }
    }));
  }
  void wait() {
    thread_.join();
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
  JoinedThreads thread_;
};

}  // namespace

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         const ClusterResolver& resolver,
                                         ParameterServerOptions options)
    : ParameterServerHome(owner, resolver, options,
                          std::make_unique<ClusterConnection>(
                              validated(resolver), task_of(resolver), options.cluster)) {}

ParameterServerHome::ParameterServerHome(const ParameterServerStrategy* owner,
                                         const ClusterResolver& resolver,
                                         ParameterServerOptions options,
                                         std::unique_ptr<ClusterConnection> connection)
    : RemoteHome(connection->servers()),
      owner_(owner),
      options_(std::move(options)),
      connection_(std::move(connection)),
      own_address_(address_of_chief(resolver)),
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

void ParameterServerHome::check_outside_step(std::string_view call) const {
  COHORT_CHECK(function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
               ErrorCode::failed_precondition, "[strategy.", call,
               "] expected a call outside of scheduled functions, got one inside, where the "
               "module itself has the values that the step reads: use it there, and call ",
               call, "() after join()");
}

void ParameterServerHome::create_on_servers(const std::vector<Variable>& fresh,
                                            const Initializer* initializer) const {
  std::map<rpc::MemberId, std::vector<rpc::VariableSpec>> by_server;
  for (const Variable& variable : fresh) {
    const std::vector<rpc::Slice> slices = slices_of(variable);
    for (std::size_t i = 0; i < slices.size(); ++i) {
      const rpc::Slice& slice = slices[i];
      rpc::VariableSpec spec{
          slice.stored(), variable.name(), variable.spec(), variable.is_trainable(), {}};
      if (!slice.is_whole()) {
        spec.name += "/part_" + std::to_string(i);
        spec.spec.sizes->front() = slice.rows;
      }
      if (initializer != nullptr) spec.initial = initial_value(*initializer, variable, slice);
      by_server[slice.server].push_back(std::move(spec));
    }
  }
  for (const auto& [server, specs] : by_server) {
    try {
      connection_->ps(static_cast<std::uint32_t>(server))
          .control->create_variables(specs, connection_->control_deadline());
    } catch (const Error& error) {
      if (error.cause() != ErrorCause::handle_lost) throw;
      throw parameter_server::restarted_error(connection_->servers()->name_of(server));
    }
  }
}

void ParameterServerHome::upload(const std::vector<Variable>& fresh) const {
  std::vector<RemoteUpdate> values;
  for (const Variable& variable : fresh) {
    values.push_back({variable, cohort::internal::write_effect(rpc::Effect::Kind::assign,
                                                               variable.tensor().detach())});
  }
  push(values, "upload of");
}

// The whole value need not exist.
void ParameterServerHome::upload_by_shards(const Variable& variable,
                                           const Initializer& initializer) const {
  const std::uint64_t seed = options_.cluster.seed;
  const ShardedVariable whole(variable);
  const std::vector<std::int64_t> offsets = whole.offsets();
  const std::vector<Variable> shards = whole.shards();
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const bool is_whole = shards.size() == 1;
    const std::int64_t end = is_whole ? 0 : offsets[i] + shards[i].spec().sizes->front();
    const at::Tensor value =
        is_whole ? initializer.make(variable.spec(), variable.name(), seed)
                 : initializer.make_rows(variable.spec(), {offsets[i], end}, variable.name(), seed);
    const RemoteUpdate update{shards[i],
                              cohort::internal::write_effect(rpc::Effect::Kind::assign, value)};
    push({&update, 1}, "upload of");
  }
}

rpc::InitialValue ParameterServerHome::initial_value(const Initializer& initializer,
                                                     const Variable& variable,
                                                     const rpc::Slice& slice) const {
  const auto [kind, first, second] = InitializerRecipe::of(initializer);
  rpc::InitialValue value{.kind = kind,
                          .first = first,
                          .second = second,
                          .seed = options_.cluster.seed,
                          .name = variable.name(),
                          .whole = variable.spec()};
  if (!slice.is_whole()) value.rows = {{slice.first_row, slice.first_row + slice.rows}};
  return value;
}

std::int64_t ParameterServerHome::num_shards(const internal::NamedTensor& wanted) const {
  if (!options_.partitioner || wanted.is_buffer || wanted.tensor.dim() == 0) return 1;
  const TensorSpec spec = TensorSpec::of(wanted.tensor);
  const std::vector<std::int64_t> shards = options_.partitioner(spec);
  const bool is_of_rows =
      shards.size() == spec.sizes->size() && shards.front() > 0 &&
      std::all_of(shards.begin() + 1, shards.end(), [](std::int64_t along) { return along == 1; });
  COHORT_CHECK(is_of_rows, ErrorCode::invalid_argument,
               "[strategy.variable] expected a partitioner that returns a number of shards above 0 "
               "along the first axis and 1 along each other axis, got ",
               at::IntArrayRef(shards), " for variable '", wanted.name, "' ", spec.to_string());
  return std::max<std::int64_t>(1, std::min(shards.front(), spec.sizes->front()));
}

std::uint32_t ParameterServerHome::next_server(std::uint64_t bytes, Placed& placed) const {
  std::size_t server = placed.shards++ % placed.bytes.size();
  if (options_.placement == VariablePlacement::fewest_bytes) {
    const auto fewest = std::min_element(placed.bytes.begin(), placed.bytes.end());
    server = static_cast<std::size_t>(fewest - placed.bytes.begin());
  }
  placed.bytes[server] += bytes;
  return static_cast<std::uint32_t>(server);
}

// Divides rows as tf's "div": the first shards have one row more.
Variable ParameterServerHome::make(const internal::NamedTensor& wanted,
                                   std::optional<std::uint32_t> ps, Placed& placed) {
  const std::int64_t shards = ps ? 1 : num_shards(wanted);
  const std::uint64_t id = ++last_id_;
  std::vector<rpc::Slice> slices;
  std::int64_t next_row = 0;
  const auto bytes = static_cast<std::uint64_t>(bytes_of(TensorSpec::of(wanted.tensor)));
  for (std::int64_t i = 0; i < shards; ++i) {
    rpc::Slice& slice = slices.emplace_back(rpc::Slice{.variable = id});
    std::uint64_t own = bytes;
    if (shards > 1) {
      const std::int64_t rows = wanted.tensor.size(0);
      slice.first_row = next_row;
      slice.rows = rows / shards + (i < rows % shards ? 1 : 0);
      slice.shard = ++last_id_;
      next_row += slice.rows;
      own = bytes / static_cast<std::uint64_t>(rows) * static_cast<std::uint64_t>(slice.rows);
    }
    slice.server = ps ? *ps : next_server(own, placed);
    if (ps) placed.bytes.at(*ps) += own;
  }
  placement().take({.slices = slices});
  const auto made = std::make_shared<RemoteVariable>(wanted.name, wanted.tensor,
                                                     wanted.is_trainable, id, weak_from_this());
  if (shards > 1) add_shards(made, slices);
  return Variable(made);
}

// Each is a variable of its own that is whole on its server.
void ParameterServerHome::add_shards(const std::shared_ptr<RemoteVariable>& whole,
                                     std::span<const rpc::Slice> slices) {
  std::vector<Variable> shards;
  for (const rpc::Slice& slice : slices) {
    placement().take({.slices = {{.variable = slice.shard, .server = slice.server}}});
    TensorSpec spec = whole->spec();
    spec.sizes->front() = slice.rows;
    const std::string name = whole->name() + "/part_" + std::to_string(shards.size());
    const auto shard = std::make_shared<RemoteVariable>(
        name, make_stand_in(spec), /*is_trainable=*/false, slice.shard, weak_from_this());
    shard->be_shard_of(whole);
    shards.emplace_back(shard);
  }
  whole->set_shards(std::move(shards));
}

Variable ParameterServerHome::create(std::string name, const TensorSpec& spec,
                                     const Initializer& initializer, bool is_trainable,
                                     std::optional<std::uint32_t> ps) {
  InitializerRecipe::check(initializer, spec, name);
  at::Tensor stand_in = make_stand_in(spec);
  if (is_trainable && stand_in.is_floating_point()) stand_in.requires_grad_(true);
  return create({{std::move(name), stand_in, is_trainable}}, ps, &initializer)[0];
}

std::vector<Variable> ParameterServerHome::create(const std::vector<internal::NamedTensor>& wanted,
                                                  std::optional<std::uint32_t> ps,
                                                  const Initializer* initializer) {
  connection_->connect_ps();
  drop_unused();
  const Lock lock(creation_);
  std::vector<Variable> made;
  std::vector<Variable> handles;
  Placed placed = placed_;
  placed.bytes.resize(connection_->num_ps(), 0);
  try {
    for (const internal::NamedTensor& each : wanted) made.push_back(make(each, ps, placed));
    for (const Variable& variable : made) handles.push_back(handle_of(variable));
    publish(made, initializer);
  } catch (...) {
    placement().erase(ids_of(made));
    throw;
  }
  placed_ = std::move(placed);
  return handles;
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

void ParameterServerHome::withdraw(const std::vector<Variable>& fresh) {
  unused_.drop(placement().erase(ids_of(fresh)));
}

// Adds the variables only after their servers hold them, since run() reads all of them. Checks
// names and memory before that, so that servers do not keep variables that are refused.
void ParameterServerHome::publish(const std::vector<Variable>& fresh,
                                  const Initializer* initializer) {
  VariableTable alone;
  for (const Variable& variable : fresh) {
    variables_.check_new(variable);
    alone.add(variable);
  }
  const bool has_numbers = initializer != nullptr && InitializerRecipe::has_numbers(*initializer);
  // Small stand-ins get the values too, for a step that reads one past the trace; the servers
  // compute theirs at the same time.
  std::vector<Variable> small;
  for (const Variable& variable : fresh)
    if (has_numbers && !is_large(variable.spec())) small.push_back(variable);
  std::optional<FilledStandIns> filled;
  try {
    if (!small.empty()) filled.emplace(small, *initializer, options_.cluster.seed);
    create_on_servers(fresh, has_numbers ? initializer : nullptr);
    if (filled) filled->wait();
    if (initializer == nullptr) {
      upload(fresh);
    } else if (!has_numbers) {
      for (const Variable& variable : fresh) upload_by_shards(variable, *initializer);
    }
  } catch (...) {
    withdraw(fresh);
    throw;
  }
  for (const Variable& variable : fresh) release_value(variable.tensor());
  for (const Variable& variable : fresh) variables_.add(variable);
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
