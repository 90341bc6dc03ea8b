// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/parameter_store.h"

#include <ATen/ops/zeros.h>

#include <mutex>

#include "cohort/optimizer/optimizer.h"
#include "cohort/rpc/effects.h"
#include "cohort/rpc/violation.h"
#include "cohort/variable/initializer_recipe.h"

namespace cohort {
namespace {

using parameter_server::AppliedPushes;
using parameter_server::StoredVariable;

using Kind = rpc::Effect::Kind;

std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

SlotKey slot_key_of(const rpc::Effect& effect) {
  COHORT_CHECK(!effect.optimizer.empty(), ErrorCode::invalid_argument,
               "[server.push] expected the name of an optimizer for a step of '", effect.rule,
               "', got none");
  return {optimizer::update_rule_of(effect.rule), effect.optimizer};
}

at::Tensor initial_value(const rpc::VariableSpec& variable) {
  if (!variable.initial)
    return at::zeros(*variable.spec.sizes, at::TensorOptions(variable.spec.dtype));
  const auto& [kind, first, second, seed, name, whole, rows] = *variable.initial;
  const Initializer initializer = InitializerRecipe{kind, first, second}.initializer();
  at::Tensor value = rows ? initializer.make_rows(whole, {rows->begin, rows->end}, name, seed)
                          : initializer.make(whole, name, seed);
  COHORT_CHECK(TensorSpec::of(value) == variable.spec, ErrorCode::invalid_argument,
               "[server.create_variables] expected an initial value of ", variable.spec.to_string(),
               ", got ", TensorSpec::of(value).to_string(), " (variable '", variable.name, "')");
  return value;
}

// Throws the error that is being handled, with the remedy if it is a lack of memory.
[[noreturn]] void rethrow_from_store(std::string_view op) {
  const Error error = current_error();
  if (error.code() != ErrorCode::resource_exhausted) throw;
  throw Error(error.code(),
              "[server." + std::string(op) +
                  "] expected memory for the variables of this server, got none: give it more "
                  "memory, or use more parameter servers, so that each has fewer variables (" +
                  error.message() + ")");
}

}  // namespace

// Fills variables before it locks the table, so that pulls and pushes of others can continue.
void ParameterStore::create(const std::vector<rpc::VariableSpec>& variables) {
  std::unordered_map<std::uint64_t, std::unique_ptr<StoredVariable>> fresh;
  for (const rpc::VariableSpec& variable : variables) {
    COHORT_CHECK(variable.spec.is_static(), ErrorCode::invalid_argument,
                 "[server.create_variables] expected known sizes, got ", variable.spec.to_string(),
                 " (variable '", variable.name, "')");
    if (has(variable.id)) continue;
    try {
      fresh[variable.id] = std::make_unique<StoredVariable>(variable.name, initial_value(variable));
    } catch (...) {
      rethrow_from_store("create_variables");
    }
  }
  const std::unique_lock lock(mutex_);
  for (const rpc::VariableSpec& variable : variables) {
    const auto found = variables_.find(variable.id);
    if (found == variables_.end()) {
      variables_.insert(fresh.extract(variable.id));
      continue;
    }
    COHORT_CHECK(found->second->name() == variable.name && found->second->spec() == variable.spec,
                 ErrorCode::already_exists, "[server.create_variables] variable ", variable.id,
                 " is '", found->second->name(), "' ", found->second->spec().to_string(),
                 " already; got '", variable.name, "' ", variable.spec.to_string());
  }
}

bool ParameterStore::has(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  return variables_.contains(id);
}

void ParameterStore::expect_placement(std::uint64_t version) {
  std::uint64_t earlier = placement_;
  while (earlier < version && !placement_.compare_exchange_weak(earlier, version)) {
  }
}

void ParameterStore::check_placement(std::uint64_t version) const {
  if (version >= placement_) return;
  internal::throw_error(ErrorCode::aborted, "[server.find_variable] expected version ",
                        placement_.load(), " of the placement of variables, got ", version,
                        ": variables have moved; ask for their new servers");
}

rpc::PullReply ParameterStore::pull(const rpc::PullRequest& request) {
  check_placement(request.placement);
  rpc::PullReply reply;
  reply.values.reserve(request.variables.size());
  for (const std::uint64_t id : request.variables) {
    StoredVariable::Version version = find(id).snapshot();
    reply.values.push_back(std::move(version.value));
    if (request.wants_versions) reply.versions.push_back(version.number);
  }
  counters_.pulled_bytes += bytes_of(reply.values);
  return reply;
}

rpc::PushReply ParameterStore::push(const rpc::PushRequest& request) {
  check_placement(request.placement);
  const rpc::PushId& id = request.id;
  rpc::check_watermark(request.low_watermark, id.number);
  const bool may_come_again = id.number != 0;
  if (may_come_again &&
      applied_.begin(id, request.low_watermark) != AppliedPushes::Verdict::apply) {
    ++counters_.pushes_dropped;
    return {.was_applied = false};
  }
  std::vector<Update> updates;
  try {
    updates = prepare(request.effects);
  } catch (...) {
    if (may_come_again) applied_.forget(id);
    rethrow_from_store("push");
  }
  try {
    for (Update& update : updates) {
      counters_.pushed_bytes += bytes_of(update.effect->tensors);
      apply(std::move(update));
    }
  } catch (...) {
    // No update rule throws. If one does, the push counts as applied, because a retry would apply a
    // part of it twice.
    if (may_come_again) applied_.finish(id);
    throw Error(current_error()).during("applying a push, of which a part is now applied");
  }
  if (may_come_again) applied_.finish(id);
  ++counters_.pushes_applied;
  return {.was_applied = true};
}

StoredVariable& ParameterStore::find(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = variables_.find(id);
  if (found == variables_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_variable] expected a variable that is here, got one that is not: "
                "this server was restarted since it was created, and has lost its variables",
                ErrorCause::handle_lost);
  }
  return *found->second;
}

std::vector<ParameterStore::Update> ParameterStore::prepare(
    const std::vector<rpc::Effect>& effects) const {
  std::vector<Update> updates;
  updates.reserve(effects.size());
  for (const rpc::Effect& effect : effects) {
    StoredVariable& variable = find(effect.variable);
    updates.push_back({&effect, &variable, reserve(effect, variable)});
  }
  return updates;
}

StoredVariable::Reserve ParameterStore::reserve(const rpc::Effect& effect,
                                                StoredVariable& variable) const {
  const bool has_two = effect.kind == Kind::scatter_add || effect.kind == Kind::merge_average;
  const std::size_t expected = has_two ? 2 : 1;
  const std::vector<at::Tensor>& tensors = effect.tensors;
  COHORT_CHECK(tensors.size() == expected, ErrorCode::invalid_argument, "[server.push] expected ",
               expected, " tensors for an update of '", variable.name(), "', got ", tensors.size());
  switch (effect.kind) {
    case Kind::apply:
      return variable.reserve_apply(slot_key_of(effect), tensors[0], effect.hyper);
    case Kind::scatter_add:
      return variable.reserve_rows(tensors[0], tensors[1]);
    case Kind::merge_average:
      COHORT_CHECK(effect.hyper.size() == 1, ErrorCode::invalid_argument,
                   "[server.push] expected a momentum for an update of '", variable.name(),
                   "', got ", effect.hyper.size(), " numbers");
      return variable.reserve_average(tensors[0], tensors[1], effect.hyper[0]);
    default:
      return variable.reserve_assign(rpc::assign_kind(effect.kind), tensors[0]);
  }
}

void ParameterStore::apply(Update update) {
  const rpc::Effect& effect = *update.effect;
  StoredVariable& variable = *update.variable;
  switch (effect.kind) {
    case Kind::apply:
      return variable.apply(slot_key_of(effect), effect.hyper, std::move(update.reserve));
    case Kind::scatter_add:
      return variable.scatter_add(effect.tensors[0], std::move(update.reserve));
    case Kind::merge_average:
      return variable.merge_average(effect.hyper[0], effect.version, std::move(update.reserve));
    default:
      return variable.assign(rpc::assign_kind(effect.kind), std::move(update.reserve));
  }
}

}  // namespace cohort
