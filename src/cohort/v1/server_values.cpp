// SPDX-License-Identifier: Apache-2.0
#include "cohort/v1/server_values.h"

#include <ATen/core/TensorBody.h>

#include <algorithm>
#include <utility>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/variable/variable_state.h"

namespace cohort::detail::v1 {
namespace {

using internal::CentralChange;
using internal::Effect;

Effect sent(Effect effect) {
  at::Tensor& value = effect.tensors[0];
  if (value.requires_grad()) value = value.detach();
  value = value.cpu();
  if (effect.kind == Effect::Kind::apply) internal::separate_rows(effect);
  effect.tensors[0] = effect.tensors[0].contiguous();
  if (effect.row_ids.defined()) effect.row_ids = effect.row_ids.cpu().to(at::kLong).contiguous();
  return effect;
}

// For errors, before the names of variables.
std::string text_of(std::span<const CentralChange> changes) {
  const auto text = [](const CentralChange& each) {
    const bool is_step = each.effect.kind == Effect::Kind::apply;
    return is_step ? "'" + each.effect.rule + "' step of" : std::string("assign to");
  };
  const std::string first = text(changes.front());
  const auto is_same = [&](const CentralChange& each) { return text(each) == first; };
  return std::ranges::all_of(changes, is_same) ? first : "changes of";
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
  return exchange(variables, {}, /*unread=*/0, known, "pull of");
}

std::vector<internal::CentralValue> ServerValues::change(std::vector<CentralChange> changes,
                                                         std::size_t unread) {
  const std::string what = text_of(changes);
  std::vector<Variable> variables;
  std::vector<Effect> effects;
  for (CentralChange& each : changes) {
    variables.push_back(std::move(each.variable));
    effects.push_back(sent(std::move(each.effect)));
  }
  const std::vector<std::uint64_t> none(variables.size());
  const ServerHome::OnePush push(job_->home());
  std::vector<internal::CentralValue> values = exchange(variables, effects, unread, none, what);
  values.erase(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(unread));
  return values;
}

// Looks the variables up in each attempt, since they may be elsewhere after a loss.
std::vector<internal::CentralValue> ServerValues::exchange(std::span<const Variable> variables,
                                                           std::span<const Effect> effects,
                                                           std::size_t unread,
                                                           std::span<const std::uint64_t> known,
                                                           const std::string& what) {
  std::vector<internal::CentralValue> values;
  job_->call([&] {
    const std::vector<Variable> remotes = remotes_of(variables);
    std::vector<ServerHome::RemoteUpdate> updates;
    for (std::size_t i = 0; i < effects.size(); ++i) updates.push_back({remotes[i], effects[i]});
    values = job_->home().send_and_read(std::move(updates), remotes, unread, known, what);
  });
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (variables[i].name() == kGlobalStep && values[i].value.defined())
      job_->note_step(values[i].value.item<std::int64_t>());
  }
  return values;
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
