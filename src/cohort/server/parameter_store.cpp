// SPDX-License-Identifier: Apache-2.0
#include "cohort/server/internal/parameter_store.h"

#include <mutex>

#include "cohort/optimizer/optimizer.h"

namespace cohort::server {
namespace {

std::uint64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  std::uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

AssignKind assign_kind(rpc::Effect::Kind kind) {
  if (kind == rpc::Effect::Kind::assign_add) return AssignKind::add;
  return kind == rpc::Effect::Kind::assign_sub ? AssignKind::sub : AssignKind::assign;
}

}  // namespace

void ParameterStore::create(const std::vector<rpc::VariableSpec>& variables) {
  const std::unique_lock lock(mutex_);
  for (const rpc::VariableSpec& variable : variables) {
    COHORT_CHECK(variable.spec.is_static(), ErrorCode::invalid_argument,
                 "[server.create_variables] expected known sizes, got ", variable.spec.to_string(),
                 " (variable '", variable.name, "')");
    const auto found = variables_.find(variable.id);
    if (found == variables_.end()) {
      variables_.emplace(variable.id, std::make_unique<StoredVariable>(variable));
      continue;
    }
    COHORT_CHECK(found->second->name() == variable.name && found->second->spec() == variable.spec,
                 ErrorCode::already_exists, "[server.create_variables] variable ", variable.id,
                 " is '", found->second->name(), "' ", found->second->spec().to_string(),
                 " already; got '", variable.name, "' ", variable.spec.to_string());
  }
}

std::vector<at::Tensor> ParameterStore::pull(const rpc::PullRequest& request) {
  std::vector<at::Tensor> values;
  values.reserve(request.variables.size());
  for (const std::uint64_t id : request.variables) values.push_back(find(id).snapshot());
  counters_.pulled_bytes += bytes_of(values);
  return values;
}

rpc::PushReply ParameterStore::push(const rpc::PushRequest& request) {
  const bool is_from_closure = request.closure_id != 0;
  if (is_from_closure && applied_.begin(request.closure_id, request.low_watermark) !=
                             AppliedClosures::Verdict::apply) {
    ++counters_.pushes_dropped;
    return {.was_applied = false};
  }
  try {
    for (const rpc::Effect& effect : request.effects) check(effect);
    for (const rpc::Effect& effect : request.effects) {
      apply(effect);
      counters_.pushed_bytes += bytes_of(effect.tensors);
    }
  } catch (...) {
    if (is_from_closure) applied_.forget(request.closure_id);
    throw;
  }
  if (is_from_closure) applied_.finish(request.closure_id);
  ++counters_.pushes_applied;
  return {.was_applied = true};
}

StoredVariable& ParameterStore::find(std::uint64_t id) const {
  const std::shared_lock lock(mutex_);
  const auto found = variables_.find(id);
  if (found == variables_.end()) {
    throw Error(ErrorCode::not_found,
                "[server.find_variable] no variable " + std::to_string(id) +
                    " here: this server was restarted since it was created, or never had it",
                ErrorCause::handle_lost);
  }
  return *found->second;
}

void ParameterStore::check(const rpc::Effect& effect) const {
  const StoredVariable& variable = find(effect.variable);
  const std::size_t expected = effect.kind == rpc::Effect::Kind::scatter_add ? 2 : 1;
  COHORT_CHECK(effect.tensors.size() == expected, ErrorCode::invalid_argument,
               "[server.push] expected ", expected, " tensors for an update of '", variable.name(),
               "', got ", effect.tensors.size());
  switch (effect.kind) {
    case rpc::Effect::Kind::apply:
      variable.check_apply(update_rule_of(effect.rule), effect.tensors[0], effect.hyper);
      break;
    case rpc::Effect::Kind::scatter_add:
      variable.check_rows(effect.tensors[0], effect.tensors[1]);
      break;
    default:
      variable.check_assign(effect.tensors[0]);
  }
}

void ParameterStore::apply(const rpc::Effect& effect) const {
  StoredVariable& variable = find(effect.variable);
  switch (effect.kind) {
    case rpc::Effect::Kind::apply:
      variable.apply(update_rule_of(effect.rule), effect.rule, effect.tensors[0], effect.hyper);
      break;
    case rpc::Effect::Kind::scatter_add:
      variable.scatter_add(effect.tensors[0], effect.tensors[1]);
      break;
    default:
      variable.assign(assign_kind(effect.kind), effect.tensors[0]);
  }
}

}  // namespace cohort::server
