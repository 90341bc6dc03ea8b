// SPDX-License-Identifier: Apache-2.0
#include "cohort/optimizer/optimizer.h"

#include <algorithm>
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/function/trace.h"
#include "cohort/optimizer/gradients/table_gradients.h"
#include "cohort/optimizer/loss_gradients.h"
#include "cohort/optimizer/optimizer_state.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/replica_count.h"
#include "cohort/variable/row_gradient.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_home.h"
#include "cohort/variable/variable_state.h"

namespace cohort {
namespace {

using GradientList = std::vector<std::pair<at::Tensor, Variable>>;

// Checks the variables and returns the set of them.
std::unordered_set<const VariableImpl*> checked_members(std::string_view rule,
                                                        const std::vector<Variable>& variables) {
  COHORT_CHECK(
      !variables.empty(), ErrorCode::invalid_argument, "[optimizer.", rule,
      "] expected variables to train, got an empty list; give it the model's parameters()");
  std::unordered_set<const VariableImpl*> members;
  for (const Variable& variable : variables) {
    COHORT_CHECK(members.insert(variable.impl().get()).second, ErrorCode::invalid_argument,
                 "[optimizer.", rule, "] expected every variable once, got '", variable.name(),
                 "' twice");
  }
  COHORT_CHECK(std::any_of(variables.begin(), variables.end(),
                           [](const Variable& v) { return v.is_trainable(); }),
               ErrorCode::invalid_argument, "[optimizer.", rule,
               "] expected a trainable variable, got only ", names_of(variables),
               ", which are not trainable");
  return members;
}

// A number read on the host cannot be part of a program.
void expect_no_trace(std::string_view what, std::string_view name, std::string_view why) {
  COHORT_CHECK(function::Trace::current() == nullptr, ErrorCode::failed_precondition, "[optimizer.",
               what, "] expected a call outside a traced step for '", name,
               "', got one inside: ", why);
}

void expect_settable(std::string_view name) {
  COHORT_CHECK(variable::ReplicaCount::current() == 1, ErrorCode::failed_precondition,
               "[optimizer.set_hyperparameter] expected a call outside of run() for '", name,
               "', got one in a replica: its ", variable::ReplicaCount::current(),
               " replicas share the optimizer; set it between two runs");
  expect_no_trace("set_hyperparameter", name,
                  "it would be set once and not at each call; set it between two calls of "
                  "the step");
}

// In the form that homes take: dense, or as rows, which an embedding with sparse(true) gives.
at::Tensor gradient_for_home(const at::Tensor& gradient, const Variable& variable) {
  const at::Tensor constant = gradient.requires_grad() ? gradient.detach() : gradient;
  const at::ScalarType type = variable.spec().dtype;
  if (variable::is_row_gradient(gradient))
    return constant.scalar_type() == type ? constant : constant.to(type);
  const bool is_sparse = gradient.layout() == at::kSparse && function::Trace::current() == nullptr;
  if (is_sparse) return variable::dense_of(gradient).to(type).contiguous();
  COHORT_CHECK(gradient.layout() == at::kStrided, ErrorCode::unimplemented,
               "[optimizer.minimize] expected a dense gradient, or a sparse one of whole rows, got "
               "one of another layout (variable '",
               variable.name(), "'); make it dense with to_dense()");
  const at::Tensor same_type = constant.to(type);
  // A sum over replicas is made row-major itself.
  const bool is_added = variable::ReplicaCount::current() > 1 && !function::Trace::current();
  return is_added ? same_type : same_type.contiguous();
}

}  // namespace

Optimizer::Optimizer(std::vector<Variable> variables, const variable::UpdateRule& rule,
                     const LearningRateSchedule& learning_rate, const std::vector<double>& hyper,
                     const OptimizerTraits& traits) {
  COHORT_ASSERT(hyper.size() + 1 == rule.hyperparameter_names().size());
  COHORT_CHECK(
      function::Trace::current() == nullptr && !EagerStep::is_scheduled_here(),
      ErrorCode::failed_precondition, "[optimizer.", rule.name(),
      "] expected an optimizer made before the step, got one made inside it, whose learning "
      "rate would be frozen; make it once outside and capture it");
  COHORT_CHECK(
      variable::ReplicaCount::current() == 1, ErrorCode::failed_precondition, "[optimizer.",
      rule.name(),
      "] expected an optimizer made outside of run(), got one of each replica, which would "
      "begin with new slots in each run; make it once outside and capture it");
  auto members = checked_members(rule.name(), variables);
  const std::string where = "optimizer." + std::string(rule.name());
  variable::check_hyperparameter_range(rule, 0, where, learning_rate(0));
  for (std::size_t i = 0; i < hyper.size(); ++i)
    variable::check_hyperparameter_range(rule, i + 1, where, hyper[i]);
  std::string name = traits.name.empty() ? optimizer::next_name(rule) : traits.name;
  state_ = std::make_shared<State>(std::move(variables), std::move(members), rule, std::move(name),
                                   learning_rate, traits.groups, traits.lazy_rows);
  state_->hyper.push_back(state_->learning_rate.hyperparameter(0));
  for (const double value : hyper) state_->hyper.push_back(make_hyperparameter(value));
  state_->groups.add_to(state_->hyper, state_->learning_rate);
  state_->attach_to_homes(state_);
}

void Optimizer::minimize(const at::Tensor& loss) const {
  check_can_update(state_->variables, "optimizer.minimize");
  // Before the loss is looked at: one that was summed over workers outside of run() has no
  // gradient, which says nothing of the reason.
  state_->check_can_minimize();
  std::unique_ptr<GradientSink> sink;  // it lives until the update is made
  state_->apply(state_->gradients(loss, &sink), /*are_temporary=*/true);
}

std::vector<std::pair<at::Tensor, Variable>> Optimizer::compute_gradients(
    const at::Tensor& loss) const {
  return state_->gradients(loss, nullptr);
}

// `sink`: becomes what takes the gradients while they are computed; nullptr: nothing may.
GradientList Optimizer::State::gradients(const at::Tensor& loss,
                                         std::unique_ptr<GradientSink>* sink) const {
  if (internal::check_loss(loss, variables)) warnings.look_at(loss);
  GradientList gradients;
  std::vector<at::Tensor> inputs;
  std::vector<std::size_t> owners;   // of the inputs, which gradient they belong to
  std::vector<c10::Device> devices;  // of the gradients
  optimizer::TableGradients tables;
  for (const Variable& variable : variables) {
    // requires_grad_(false) may freeze a parameter for a while.
    if (!variable.is_trainable() || !variable.tensor().requires_grad()) continue;
    variable.impl()->check_tensor_is_current(sink == nullptr ? "optimizer.compute_gradients"
                                                             : "optimizer.minimize");
    devices.push_back(variable.tensor().device());
    if (variable.impl()->is_table()) {
      tables.add_inputs(variable, inputs);
      owners.resize(inputs.size(), gradients.size());
      gradients.emplace_back(at::Tensor(), variable);
      continue;
    }
    inputs.push_back(variable.tensor());
    owners.push_back(gradients.size());
    // A sum of the losses of several replicas depends on the components of all.
    for (const at::Tensor& other : variable.impl()->other_tensors()) {
      inputs.push_back(other);
      owners.push_back(gradients.size());
    }
    gradients.emplace_back(at::Tensor(), variable);
  }
  const bool are_whole = tables.is_empty() && inputs.size() == gradients.size();
  if (sink != nullptr && are_whole) *sink = sink_for(gradients);
  std::vector<at::Tensor> results =
      internal::loss_gradients(loss, inputs, variables, sink == nullptr ? nullptr : sink->get());
  for (std::size_t i = 0; i < results.size(); ++i) {
    at::Tensor& sum = gradients[owners[i]].first;
    if (!results[i].defined()) continue;
    if (tables.take(i, gradients[owners[i]].second, sum, results[i])) continue;
    // The gradient of another replica's component may be on another device.
    const c10::Device device = devices[owners[i]];
    if (results[i].device() != device) results[i] = results[i].to(device);
    sum = sum.defined() ? sum.add(results[i]) : std::move(results[i]);
  }
  return gradients;
}

void Optimizer::apply_gradients(const GradientList& gradients) const {
  check_can_update(state_->variables, "optimizer.apply_gradients");
  state_->apply(gradients, /*are_temporary=*/false);
}

void Optimizer::State::apply(const GradientList& gradients, bool are_temporary) {
  const bool is_one_of_several = variable::ReplicaCount::current() > 1;
  std::vector<Update> updates;
  for (const auto& [gradient, variable] : gradients) {
    COHORT_CHECK(
        has(variable) && variable.is_trainable(), ErrorCode::invalid_argument,
        "[optimizer.apply_gradients] expected trainable variables of this optimizer, got '",
        variable.name(), "'");
    if (gradient.defined()) {
      const bool is_temporary = are_temporary && internal::is_only_user(gradient);
      updates.push_back({variable, gradient_for_home(gradient, variable), is_temporary});
      warn_of_all_rows(updates.back());
    } else if (is_one_of_several) {
      updates.push_back({variable, gradient});  // other replicas may have one
    }
  }
  COHORT_CHECK(!updates.empty(), ErrorCode::invalid_argument,
               "[optimizer.apply_gradients] expected gradients, got none that is defined");
  if (auto* trace = function::Trace::current()) {
    // A program that runs here reads the hyperparameters when it makes the update, and counts it.
    return apply_updates(slot_key(), updates, trace->runs_here() ? hyper : captured_by(*trace));
  }
  learning_rate.check();  // throws the exceptions of schedules before any update
  apply_updates(slot_key(), updates, hyper);
  if (!is_one_of_several) learning_rate.add_one();  // else see SlotKey
}

double Optimizer::hyperparameter(std::string_view name) const {
  expect_no_trace("hyperparameter", name,
                  "its value would be frozen; pass it to the step as a tensor");
  const std::size_t index = state_->find(name);
  return index == 0 ? state_->learning_rate.value() : hyperparameter_value(state_->hyper[index]);
}

double Optimizer::hyperparameter(std::string_view name, const Variable& variable) const {
  COHORT_CHECK(state_->has(variable), ErrorCode::invalid_argument,
               "[optimizer.hyperparameter] expected a variable of this optimizer for '", name,
               "', got '", variable.name(), "'; variables() lists them");
  const double of_rest = hyperparameter(name);
  const auto own = state_->slot_key().hyper_of<at::Tensor>(variable.impl().get(), state_->hyper);
  const at::Tensor& value = own[state_->find(name)];
  return value.is_same(state_->hyper[state_->find(name)]) ? of_rest : hyperparameter_value(value);
}

void Optimizer::set_hyperparameter(std::string_view name, double value) {
  const std::size_t index = state_->find(name);
  if (index == 0) return set_learning_rate(value);
  expect_settable(name);
  variable::check_hyperparameter_range(state_->rule, index,
                                       "optimizer." + std::string(state_->rule.name()), value);
  cohort::set_hyperparameter(state_->hyper[index], value);
}

void Optimizer::set_learning_rate(const LearningRateSchedule& learning_rate) {
  expect_settable("learning_rate");
  variable::check_hyperparameter_range(state_->rule, 0,
                                       "optimizer." + std::string(state_->rule.name()),
                                       learning_rate(state_->learning_rate.next_number()));
  state_->learning_rate.set_value(learning_rate, !learning_rate.is_constant());
}

std::int64_t Optimizer::iterations() const {
  expect_no_trace("iterations", "iterations",
                  "its value would be frozen; pass it to the step as a tensor");
  return state_->learning_rate.count();
}

void Optimizer::set_iterations(std::int64_t iterations) {
  expect_settable("iterations");
  COHORT_CHECK(iterations >= 0, ErrorCode::invalid_argument, "[optimizer.", state_->rule.name(),
               "] expected iterations >= 0, got ", iterations);
  if (state_->keeps_newer_values())
    return log_warn("[optimizer.set_iterations] kept ", state_->learning_rate.count(), " of ",
                    state_->key(), ", which the running job has, in place of ", iterations);
  state_->learning_rate.set_count(iterations);
}

const std::vector<Variable>& Optimizer::variables() const { return state_->variables; }
const std::string& Optimizer::name() const { return state_->claimed.get(); }
const variable::UpdateRule& Optimizer::rule() const { return state_->rule; }

}  // namespace cohort
