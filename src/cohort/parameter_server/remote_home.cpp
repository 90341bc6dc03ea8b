// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/remote_home.h"

#include <ATen/core/grad_mode.h>

#include <iterator>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/rpc/effects.h"
#include "cohort/variable/eager_step.h"

namespace cohort {
namespace {

using Push = ParameterClient::Push;

// Assigns the values that the step has written in place into the stand-ins since they last equalled
// the servers' values.
std::vector<Push> written_by(const EagerStep& step, std::span<const Variable> variables) {
  std::vector<Push> pushes;
  for (const Variable& variable : variables) {
    if (!step.has_written(*variable.impl())) continue;
    COHORT_CHECK(!variable.is_trainable(), ErrorCode::invalid_argument,
                 "[variable.write_back] expected variable '", variable.name(),
                 "', which lives on a server, to be updated there, got a step that writes in place "
                 "into its copy; use assign/assign_add or an optimizer");
    pushes.push_back(
        {variable, rpc::assign_effect(internal::AssignKind::assign, variable.impl()->copy())});
  }
  return pushes;
}

}  // namespace

std::vector<at::Tensor> RemoteHome::read(std::span<const Variable> variables) const {
  return client_.pull(variables);
}

void RemoteHome::assign(std::span<const Assignment> assignments) {
  std::vector<Push> pushes;
  for (const Assignment& each : assignments) {
    pushes.push_back(
        {each.variable, rpc::assign_effect(each.kind, each.value.detach().contiguous())});
  }
  update(std::move(pushes), "assign to");
}

void RemoteHome::apply(const SlotKey& key, std::span<const Update> updates,
                       std::span<const double> hyper) {
  std::vector<Push> pushes;
  for (const Update& each : updates) {
    pushes.push_back({each.variable, rpc::apply_effect({key.rule.name(), key.optimizer},
                                                       {hyper.begin(), hyper.end()},
                                                       each.gradient.detach().contiguous())});
  }
  update(std::move(pushes), "'" + std::string(key.rule.name()) + "' step of");
}

void RemoteHome::update(std::vector<Push> pushes, const std::string& what) const {
  EagerStep* const step = EagerStep::current();
  if (step == nullptr) return client_.push(std::move(pushes), what);
  std::vector<Variable> variables;
  for (const Push& push : pushes) variables.push_back(push.variable);
  std::vector<Push> all = written_by(*step, variables);  // so that the step's values are updated
  std::move(pushes.begin(), pushes.end(), std::back_inserter(all));
  client_.push(std::move(all), what);
  const std::vector<at::Tensor> values = client_.pull(variables);
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
  std::vector<Push> pushes = written_by(*step, variables);
  if (pushes.empty()) return;
  const std::vector<Push> sent = pushes;
  client_.push(std::move(pushes), "assign to");
  for (const auto& [variable, effect] : sent) step->note(*variable.impl(), effect.tensors[0]);
}

}  // namespace cohort
