// SPDX-License-Identifier: Apache-2.0
// How the home of a strategy makes variables on its servers.
#include <ATen/ops/detach.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/core/start_thread.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/parameter_server_strategy/stand_in_memory.h"
#include "cohort/rpc/messages.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort::detail {
namespace {

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
  send_specs(by_server);
}

void ParameterServerHome::send_specs(
    const std::map<rpc::MemberId, std::vector<rpc::VariableSpec>>& by_server) const {
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
  for (const internal::NamedTensor& each : wanted) unused_.await_free(each.name);
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

Variable ParameterServerHome::create_table(std::string name, const EmbeddingTableOptions& options) {
  at::Tensor stand_in = at::empty({0, options.dim}, at::TensorOptions(options.dtype));
  stand_in.requires_grad_(true);
  connection_->connect_ps();
  drop_unused();
  const Lock lock(creation_);
  const std::uint64_t id = ++last_id_;
  const Variable table(std::make_shared<RemoteVariable>(std::move(name), stand_in,
                                                        /*is_trainable=*/true, id, weak_from_this(),
                                                        /*is_table=*/true));
  variables_.check_new(table);
  std::vector<rpc::Slice> slices;
  for (std::uint32_t ps = 0; ps < connection_->num_ps(); ++ps) {
    slices.push_back({.variable = id,
                      .server = ps,
                      .first_row = ps,
                      .rows = rpc::Slice::kRowsByKey,
                      .shard = ++last_id_});
  }
  Variable handle = handle_of(table);
  placement().take({.slices = slices});
  try {
    create_table_on_servers(table, options);
  } catch (...) {
    withdraw({table});
    throw;
  }
  variables_.add(table, {.is_handle_only = true});
  return handle;
}

void ParameterServerHome::create_table_on_servers(const Variable& table,
                                                  const EmbeddingTableOptions& options) const {
  const std::vector<rpc::Slice> slices = slices_of(table);
  const auto servers = static_cast<std::int64_t>(slices.size());
  const auto [kind, first, second] = InitializerRecipe::of(options.initializer);
  rpc::VariableSpec spec{.name = table.name(),
                         .spec = {options.dtype, {{-1, options.dim}}},
                         .initial = rpc::InitialValue{.kind = kind,
                                                      .first = first,
                                                      .second = second,
                                                      .seed = options_.cluster.seed,
                                                      .name = table.name()},
                         .table = rpc::TableSpec()};
  spec.table->capacity = static_cast<std::uint64_t>((options.capacity + servers - 1) / servers);
  spec.table->min_count = static_cast<std::uint32_t>(options.min_count);
  spec.table->eviction = static_cast<rpc::TableSpec::Eviction>(options.eviction);
  TensorSpec row = spec.spec;
  row.sizes->front() = 1;
  InitializerRecipe::check_rows(options.initializer, row, table.name());
  std::map<rpc::MemberId, std::vector<rpc::VariableSpec>> by_server;
  for (const rpc::Slice& slice : slices) {
    spec.id = slice.stored();
    by_server[slice.server].push_back(spec);
  }
  send_specs(by_server);
}

}  // namespace cohort::detail
