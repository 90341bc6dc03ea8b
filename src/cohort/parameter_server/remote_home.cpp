// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_home.h"

#include <ATen/core/grad_mode.h>

#include <iterator>
#include <numeric>
#include <unordered_set>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/rpc/lost_server.h"
#include "cohort/variable/eager_step.h"

namespace cohort {

using parameter_server::ParameterClient;

rpc::Placement RemoteHome::places_of(std::span<const Variable> variables) const {
  std::vector<std::uint64_t> ids;
  for (const Variable& variable : variables) ids.push_back(RemoteVariable::of(variable).id());
  return placement_.find(ids);
}

// If a connection broke while the answer was awaited, the error says what to do. Each error names
// those of the variables that its request was about.
void RemoteHome::exchange(ParameterClient::Exchange exchange, std::span<const Variable> variables,
                          const std::string& what) const {
  const auto describe = [&](std::span<const std::uint64_t> ids, bool) {
    const std::unordered_set<std::uint64_t> wanted(ids.begin(), ids.end());
    std::vector<Variable> asked;
    for (const Variable& variable : variables)
      if (wanted.contains(RemoteVariable::of(variable).id())) asked.push_back(variable);
    return what + (asked.size() == 1 ? " variable " : " variables ") + names_of(asked);
  };
  VariableTraffic traffic;
  try {
    client_.exchange(std::move(exchange), traffic, describe);
  } catch (const Error& error) {
    const bool is_lost =
        error.code() == ErrorCode::unavailable && error.cause() == ErrorCause::peer_lost;
    if (is_lost) throw rpc::as_lost_server(error);
    throw;
  }
  if (EagerStep* const step = EagerStep::current()) {
    step->traffic().pulled_bytes += traffic.pulled_bytes;
    step->traffic().pushed_bytes += traffic.pushed_bytes;
  }
}

std::vector<at::Tensor> RemoteHome::read(std::span<const Variable> variables) const {
  std::vector<std::size_t> positions(variables.size());
  std::iota(positions.begin(), positions.end(), 0);
  const auto pulls = parameter_server::pulls_of(places_of(variables), positions);
  std::vector<at::Tensor> values(variables.size());
  exchange({.pulls = pulls, .values = values}, variables, "pull of");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Variable& variable = variables[i];
    COHORT_CHECK(TensorSpec::of(values[i]) == variable.spec(), ErrorCode::data_loss,
                 "[variable.read] expected ", variable.spec().to_string(), ", got ",
                 TensorSpec::of(values[i]).to_string(), " (variable '", variable.name(), "' on ",
                 links_->name_of(place_of(variable).server), ")");
  }
  return values;
}

void RemoteHome::push(std::span<const RemoteUpdate> updates, const std::string& what) const {
  std::vector<Variable> variables;
  for (const RemoteUpdate& update : updates) variables.push_back(update.variable);
  const rpc::Placement places = places_of(variables);
  parameter_server::PushBatch batch;
  for (std::size_t i = 0; i < updates.size(); ++i) batch.add(places.slices[i], updates[i].effect);
  exchange({.pushes = batch.take(places.version)}, variables, what);
}

void RemoteHome::write(std::span<const VariableWrite> writes) {
  std::vector<RemoteUpdate> updates;
  for (const VariableWrite& write : writes) {
    rpc::Effect effect = write.effect();
    effect.tensors[0] = effect.tensors[0].detach().contiguous();
    if (effect.row_ids.defined()) effect.row_ids = effect.row_ids.to(at::kLong).contiguous();
    updates.push_back({write.variable, std::move(effect)});
  }
  update(std::move(updates), "assign to");
}

void RemoteHome::apply(const SlotKey& key, std::span<const Update> updates,
                       std::span<const double> hyper) {
  std::vector<RemoteUpdate> remote;
  for (const auto& [variable, gradient, is_temporary] : updates) {
    rpc::Effect effect =
        internal::apply_effect(key.owner(), {hyper.begin(), hyper.end()}, gradient.detach());
    internal::separate_rows(effect);
    effect.tensors[0] = effect.tensors[0].contiguous();
    remote.push_back({variable, std::move(effect)});
  }
  update(std::move(remote), "'" + std::string(key.rule.name()) + "' step of");
}

// Assigns the values that the step has written in place into the stand-ins since they last equalled
// the servers' values.
std::vector<RemoteHome::RemoteUpdate> RemoteHome::written_by(const EagerStep& step,
                                                             std::span<const Variable> variables) {
  std::vector<RemoteUpdate> updates;
  for (const Variable& variable : variables) {
    if (!step.has_written(*variable.impl())) continue;
    COHORT_CHECK(!variable.is_trainable(), ErrorCode::invalid_argument,
                 "[variable.write_back] expected variable '", variable.name(),
                 "', which lives on a server, to be updated there, got a step that writes in place "
                 "into its copy; use assign/assign_add or an optimizer");
    updates.push_back(
        {variable, internal::write_effect(rpc::Effect::Kind::assign, variable.impl()->copy())});
  }
  return updates;
}

void RemoteHome::update(std::vector<RemoteUpdate> updates, const std::string& what) const {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return push(updates, what);
  std::vector<Variable> variables;
  for (const RemoteUpdate& update : updates) variables.push_back(update.variable);
  // What the step wrote comes first, so that these values are updated.
  std::vector<RemoteUpdate> all = written_by(*step, variables);
  std::move(updates.begin(), updates.end(), std::back_inserter(all));
  push(all, what);
  const std::vector<at::Tensor> values = read(variables);
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    at::Tensor stand_in = variables[i].tensor();
    stand_in.copy_(values[i]);  // autograd then refuses a graph that saved the old value
    step->note(*variables[i].impl(), values[i]);
  }
}

void RemoteHome::write_back(std::span<const Variable> variables) const {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return;
  const std::vector<RemoteUpdate> updates = written_by(*step, variables);
  if (updates.empty()) return;
  push(updates, "assign to");
  for (const auto& [variable, effect] : updates) step->note(*variable.impl(), effect.tensors[0]);
}

}  // namespace cohort
