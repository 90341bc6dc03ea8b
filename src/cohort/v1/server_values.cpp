// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/server_values.h"

#include <ATen/core/TensorBody.h>

#include <utility>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/variable/variable_state.h"

namespace cohort::detail::v1 {
namespace {

internal::Effect sent_write(const VariableWrite& write) {
  internal::Effect effect = write.effect();
  effect.tensors[0] = effect.tensors[0].detach().cpu().contiguous();
  if (effect.row_ids.defined()) effect.row_ids = effect.row_ids.cpu().to(at::kLong).contiguous();
  return effect;
}

internal::Effect sent_update(const SlotKey& key, const internal::CentralUpdate& update) {
  internal::Effect effect = internal::apply_effect(
      key.owner(), {update.hyper.begin(), update.hyper.end()}, update.gradient.detach().cpu());
  internal::separate_rows(effect);
  effect.tensors[0] = effect.tensors[0].contiguous();
  return effect;
}

}  // namespace

std::vector<at::Tensor> ServerValues::add(std::span<const internal::CentralRequest> requests) {
  std::vector<WantedVariable> wanted;
  for (const internal::CentralRequest& each : requests) {
    wanted.push_back({.name = each.variable.name(),
                      .spec = each.variable.spec(),
                      .is_trainable = each.variable.is_trainable(),
                      .initial = each.initial_value});
    if (each.beside) wanted.back().beside = each.beside->name();
  }
  return job_->add(wanted);
}

std::vector<Variable> ServerValues::remotes_of(std::span<const Variable> variables) const {
  std::vector<Variable> remotes;
  for (const Variable& each : variables) remotes.push_back(job_->known().remote_of(each));
  return remotes;
}

std::vector<at::Tensor> ServerValues::read(std::span<const Variable> variables) {
  const std::vector<std::uint64_t> none(variables.size());
  std::vector<at::Tensor> values;
  for (internal::CentralValue& each : read_newer(variables, none))
    values.push_back(std::move(each.value));
  return values;
}

std::vector<internal::CentralValue> ServerValues::read_newer(std::span<const Variable> variables,
                                                             std::span<const std::uint64_t> known) {
  return exchange(variables, {}, known, "pull of");
}

std::vector<internal::CentralValue> ServerValues::change(std::span<const Variable> variables,
                                                         std::span<const internal::Effect> effects,
                                                         const std::string& what) {
  const std::vector<std::uint64_t> none(variables.size());
  const ServerHome::OnePush push(job_->home());
  return exchange(variables, effects, none, what);
}

// Looks the variables up in each attempt, since they may be elsewhere after a loss.
std::vector<internal::CentralValue> ServerValues::exchange(
    std::span<const Variable> variables, std::span<const internal::Effect> effects,
    std::span<const std::uint64_t> known, const std::string& what) {
  std::vector<internal::CentralValue> values;
  job_->call([&] {
    const std::vector<Variable> remotes = remotes_of(variables);
    std::vector<ServerHome::RemoteUpdate> updates;
    for (std::size_t i = 0; i < effects.size(); ++i) updates.push_back({remotes[i], effects[i]});
    values = job_->home().send_and_read(updates, remotes, known, what);
  });
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (variables[i].name() == kGlobalStep && values[i].value.defined())
      job_->note_step(values[i].value.item<std::int64_t>());
  }
  return values;
}

std::vector<internal::CentralValue> ServerValues::apply(
    const SlotKey& key, std::span<const internal::CentralUpdate> updates) {
  std::vector<Variable> variables;
  std::vector<internal::Effect> effects;
  for (const internal::CentralUpdate& update : updates) {
    variables.push_back(update.variable);
    effects.push_back(sent_update(key, update));
  }
  return change(variables, effects, "'" + std::string(key.rule.name()) + "' step of");
}

std::vector<internal::CentralValue> ServerValues::write(std::span<const VariableWrite> writes) {
  std::vector<Variable> variables;
  std::vector<internal::Effect> effects;
  for (const VariableWrite& write : writes) {
    variables.push_back(write.variable);
    effects.push_back(sent_write(write));
  }
  return change(variables, effects, "assign to");
}

// Records that were taken cannot be taken back, so only a call without any is made again.
void ServerValues::export_state(std::span<const Variable> variables, const StateWalk& walk,
                                const TakeRecord& take) {
  bool has_taken = false;
  const TakeRecord noted = [&](std::size_t i, VariableRecord record) {
    has_taken = true;
    take(i, std::move(record));
  };
  job_->save([&] {
    try {
      job_->home().export_state(remotes_of(variables), walk, noted);
    } catch (const Error& error) {
      if (!has_taken) throw;
      throw Error(error.code(), error.message()).at(error.origin());
    }
  });
}

void ServerValues::import_state(const Variable& variable, const VariableRecord& record) {
  COHORT_CHECK(job_->role().is_chief(), ErrorCode::failed_precondition,
               "[variable.import_state] expected ", job_->role().chief(), ", got ",
               job_->role().name(), " for variable '", variable.name(),
               "': only that task restores values; others find them on the parameter servers");
  job_->call([&] { job_->home().import_state(job_->known().remote_of(variable), record); });
}

void ServerValues::about_to_run() {
  job_->note_run();
  job_->let_others_train();
}

std::vector<std::string> ServerValues::devices_of(const Variable& variable) const {
  const auto found = job_->known().find(variable.name());
  std::vector<std::string> devices;
  if (!found) return devices;
  for (const rpc::Slice& slice : found->slices)
    devices.push_back("/job:ps/task:" + std::to_string(slice.server) + "/CPU:0");
  return devices;
}

}  // namespace cohort::detail::v1
