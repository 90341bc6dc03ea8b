// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/functions/step_function.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cohort/coordinator/functions/table_traffic.h"
#include "cohort/core/error.h"
#include "cohort/function/step_scope.h"
#include "cohort/parameter_server/parameter_client.h"

namespace cohort::coordinator {

StepFunction::StepFunction(std::uint32_t id, Function function, function::CallSignature signature,
                           ParameterServerStrategy& strategy)
    : id_(id),
      strategy_(strategy),
      traced_(std::move(function), std::move(signature)),
      small_arguments_(function::bind_arguments(traced_.signature().pattern()).tensors) {}

// Calls `trace` with the variables of the strategy, in its scope. Each pass of the trace starts in
// the current modes of the replicated modules.
template <class F>
auto StepFunction::in_strategy(const F& trace) const {
  const VariableTable& variables = strategy_.home()->variables();
  const std::int64_t workers = strategy_.home()->connection().num_workers();
  const StrategyScope scope = strategy_.scope();
  const ModesScope modes(*strategy_.home());
  function::TraceSetting setting;
  setting.variable_of = variables.lookup();
  for (const Variable& variable : variables.variables())
    setting.variables.push_back(variable.tensor());
  setting.tensor_of = [&](const std::string& variable) {
    const auto entry = variables.find(variable);
    COHORT_ASSERT(entry != nullptr);
    return entry->variable.tensor();
  };
  setting.worker_index = [workers](int pass) -> Fields {
    return {function::worker_index_tensor(pass % workers)};
  };
  setting.begin_pass = [&](const Fields&) { modes.restore(); };
  setting.check_result = [this](const at::Tensor& tensor, std::size_t number) {
    rpc::check_sendable(tensor, "coordinator.schedule", "as the result of '" + name() + "'",
                        "tensor " + std::to_string(number), "return it dense, or leave it out");
  };
  return trace(setting);
}

void StepFunction::trace_first(const std::vector<Fields>& elements,
                               const std::vector<Fields>& others) {
  in_strategy([&](const function::TraceSetting& setting) {
    adopt(traced_.trace_first(setting, elements, others));
  });
}

void StepFunction::trace_drawn(const std::vector<at::Tensor>& drawn) {
  in_strategy([&](const function::TraceSetting& setting) {
    if (const auto info = traced_.trace_drawn(setting, drawn)) adopt(*info);
  });
}

// Adds the new, last program, with its variables. It is called during the trace's setting, which
// keeps the stand-ins, and so the variables.
void StepFunction::adopt(const function::ProgramInfo& info) {
  Program program{traced_.programs().back(), {}, {}};
  for (const auto& used : info.variables) {
    const auto entry = strategy_.home()->variables().find(used.name);
    COHORT_ASSERT(entry != nullptr);
    program.variables.push_back({used.name, RemoteVariable::of(entry->variable).id()});
    program.handles.push_back(strategy_.home()->handle_of(entry->variable));
  }
  has_warned_of_tables_ =
      has_warned_of_tables_ ||
      warn_of_moved_tables(name(), traced_.programs().back(), info, strategy_.home()->variables());
  const Lock lock(mutex_);
  for (std::size_t i = 0; i < info.variables.size(); ++i)
    if (info.variables[i].is_updated) updated_.insert(program.variables[i].id);
  programs_.push_back(std::move(program));
}

std::vector<Variable> StepFunction::only_read() const {
  std::vector<Variable> all;
  const Lock lock(mutex_);
  std::unordered_set<std::uint64_t> seen = updated_;
  for (const Program& program : programs_) {
    for (std::size_t i = 0; i < program.variables.size(); ++i)
      if (seen.insert(program.variables[i].id).second) all.push_back(program.handles[i]);
  }
  return all;
}

void StepFunction::drop_last_program() {
  traced_.drop_last_program();
  const Lock lock(mutex_);
  programs_.pop_back();
}

std::size_t StepFunction::program_count() const {
  const Lock lock(mutex_);
  return programs_.size();
}

rpc::FunctionBody StepFunction::body(std::size_t programs_before) const {
  rpc::FunctionBody body{.id = id_,
                         .name = name(),
                         .registered_name = traced_.function().state()->registered_name,
                         .programs_before = static_cast<std::uint32_t>(programs_before)};
  std::unordered_set<std::string_view> known;
  const Lock lock(mutex_);
  for (std::size_t i = programs_before; i < programs_.size(); ++i) {
    body.programs.push_back(programs_[i].bytes);
    for (const auto& variable : programs_[i].variables)
      if (known.insert(variable.name).second) body.variables.push_back(variable);
  }
  return body;
}

void StepFunction::send(const rpc::FunctionBody& body, rpc::ControlClient& worker) const {
  const cohort::detail::ParameterServerHome& home = *strategy_.home();
  std::vector<std::uint64_t> ids;
  for (const rpc::FunctionBody::Variable& variable : body.variables) ids.push_back(variable.id);
  if (!ids.empty()) {
    worker.place_variables(home.placement().message(ids), home.connection().control_deadline());
  }
  worker.register_function(body, home.connection().control_deadline());
}

std::vector<at::Tensor> StepFunction::captured(CountedUpdates& counted) const {
  if (traced_.captured_count() == 0) return {};
  return hyperparameters_of_step(*traced_.captured(), counted);
}

bool StepFunction::varies_with_updates() const {
  if (traced_.captured_count() == 0) return false;
  const auto all = traced_.captured();
  return std::any_of(all->begin(), all->end(), cohort::varies_with_updates);
}

std::vector<at::Tensor> StepFunction::captured_uncounted() const {
  if (traced_.captured_count() == 0) return {};
  std::vector<at::Tensor> values;
  for (const at::Tensor& value : *traced_.captured())
    values.push_back(hyperparameter_snapshot(value));
  return values;
}

bool StepFunction::add_captured(std::vector<at::Tensor>& captured, std::uint64_t time,
                                CountedUpdates* counted) const {
  if (captured.size() == traced_.captured_count()) return true;
  const auto all = traced_.captured();
  for (std::size_t i = captured.size(); i < all->size(); ++i) {
    at::Tensor value = hyperparameter_snapshot((*all)[i], time);
    if (!value.defined()) return false;
    captured.push_back(std::move(value));
    if (counted != nullptr) counted->take_also((*all)[i]);
  }
  return true;
}

std::vector<at::Tensor> StepFunction::restored(const internal::KeptArguments& arguments) const {
  const Lock lock(mutex_);
  return arguments.restored(small_arguments_);
}

Nest StepFunction::result_of(std::vector<at::Tensor> outputs) const {
  const std::optional<std::size_t> expected = traced_.result_count();
  COHORT_CHECK(!expected || outputs.size() == *expected, ErrorCode::data_loss,
               "[coordinator.fetch] expected ", expected.value_or(0), " tensors as the result of '",
               name(), "', got ", outputs.size(),
               " from its worker; run the same release of Cohort on every task");
  return traced_.result_of(std::move(outputs));
}

}  // namespace cohort::coordinator
