// SPDX-License-Identifier: Apache-2.0
#include "cohort/strategy/internal/mirrored_variable.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/div.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "cohort/strategy/internal/mirrored_home.h"
#include "cohort/strategy/internal/reduction.h"
#include "cohort/variable/detail/validation.h"

namespace cohort::internal {
namespace {

std::vector<VariableState> states_of(std::vector<at::Tensor> components) {
  std::vector<VariableState> states;
  for (at::Tensor& component : components) states.emplace_back(std::move(component));
  return states;
}

}  // namespace

MirroredVariable::MirroredVariable(std::string name, std::vector<at::Tensor> components,
                                   Traits traits, std::shared_ptr<MirroredHome> home)
    : name_(std::move(name)),
      spec_(TensorSpec::of(components.at(0))),
      traits_(traits),
      home_(std::move(home)),
      states_(states_of(std::move(components))) {
  COHORT_CHECK(traits_.aggregation != VariableAggregation::mean || at::isFloatingType(spec_.dtype),
               ErrorCode::invalid_argument,
               "[variable.create] expected a floating-point variable for aggregation mean, got ",
               spec_.to_string(), " (variable '", name_,
               "'), whose mean may be no whole number; use sum or only_first_replica");
  for (const VariableState& state : states_) {
    variable::check_tensor(name_, state.value(), traits_.is_trainable);
    names_.emplace_back(state.value(), name_);
  }
}

const at::Tensor& MirroredVariable::tensor() const { return component(home_->component_here()); }

std::shared_ptr<VariableHome> MirroredVariable::home() const { return home_; }

void MirroredVariable::check_tensor_is_current(std::string_view call) const {
  COHORT_CHECK(!is_on_read() || home_->is_in_replica() || size() == 1,
               ErrorCode::failed_precondition, "[", call,
               "] expected a replica context for variable '", name_,
               "', whose replicas have different values; use read(), which combines them");
}

at::Tensor MirroredVariable::reduced() const {
  switch (traits_.aggregation) {
    case VariableAggregation::only_first_replica:
      return component(0).detach().clone();
    case VariableAggregation::none:
      throw_error(ErrorCode::invalid_argument,
                  "[variable.read] expected an aggregation for "
                  "variable '",
                  name_,
                  "', which is synchronized on read, got none; make it with "
                  "VariableAggregation sum, mean or only_first_replica, or read it in run()");
    case VariableAggregation::sum:
    case VariableAggregation::mean:
      break;
  }
  const bool is_mean = traits_.aggregation == VariableAggregation::mean;
  const Reduction reduction(is_mean ? ReduceOp::mean : ReduceOp::sum, {});
  std::vector<Reduction::Parts> parts;
  for (const VariableState& state : states_)
    parts.push_back(reduction.parts(state.value().detach()));
  const at::Tensor value = reduction.result(reduction.sum(parts));
  return value.is_alias_of(component(0)) ? value.clone() : value;
}

at::Tensor MirroredVariable::copy() const {
  if (!is_on_read() || size() == 1 || home_->is_in_replica()) return tensor().detach().clone();
  const Lock lock(mutex_);
  return reduced();
}

bool MirroredVariable::shares_memory(const at::Tensor& value) const {
  return std::any_of(states_.begin(), states_.end(),
                     [&](const VariableState& state) { return value.is_alias_of(state.value()); });
}

void MirroredVariable::write(std::size_t i, AssignKind kind, const at::Tensor& value) {
  const c10::NoGradGuard no_grad;
  const at::Tensor& own = component(i);
  switch (kind) {
    case AssignKind::assign:
      own.copy_(value);
      break;
    case AssignKind::add:
      own.add_(value);
      break;
    case AssignKind::sub:
      own.sub_(value);
      break;
  }
}

void MirroredVariable::check_assign_all(AssignKind kind) const {
  if (!is_on_read() || size() == 1) return;
  COHORT_CHECK(traits_.aggregation != VariableAggregation::none, ErrorCode::invalid_argument,
               "[variable.assign] expected an aggregation for variable '", name_,
               "', which is synchronized on read, got none; assign in run(), or make it with "
               "VariableAggregation sum, mean or only_first_replica");
  COHORT_CHECK(kind == AssignKind::assign || traits_.aggregation != VariableAggregation::sum,
               ErrorCode::invalid_argument, "[variable.assign_",
               kind == AssignKind::add ? "add" : "sub",
               "] expected a replica context for variable '", name_,
               "', whose value is the sum of its replicas; assign a whole value, or add in "
               "run()");
}

void MirroredVariable::assign_all(AssignKind kind, const at::Tensor& value) {
  const c10::NoGradGuard no_grad;
  const Lock lock(mutex_);
  const at::Tensor source = shares_memory(value) ? value.clone() : value;
  const bool is_split = is_on_read() && traits_.aggregation == VariableAggregation::sum;
  if (!is_split) {
    for (std::size_t i = 0; i < size(); ++i) write(i, kind, source);
    return;
  }
  const auto replicas = static_cast<std::int64_t>(size());
  if (at::isFloatingType(spec_.dtype)) {
    const at::Tensor share = at::div(source, replicas);
    for (std::size_t i = 0; i < size(); ++i) write(i, AssignKind::assign, share);
    return;
  }
  // The first replica gets what the division of integers leaves over.
  const at::Tensor share = at::div(source, replicas, "trunc").to(spec_.dtype);
  write(0, AssignKind::assign, source.sub(share.mul(replicas - 1)));
  for (std::size_t i = 1; i < size(); ++i) write(i, AssignKind::assign, share);
}

void MirroredVariable::assign_component(std::size_t i, AssignKind kind, const at::Tensor& value) {
  write(i, kind, value.is_alias_of(component(i)) ? value.detach().clone() : value);
}

VariableState::Fresh MirroredVariable::reserve(std::size_t i, const SlotKey& key,
                                               std::span<const double> hyper) const {
  return states_[i].reserve(key, hyper, name_);
}

void MirroredVariable::apply(std::size_t i, const SlotKey& key, VariableState::Fresh fresh,
                             const at::Tensor& gradient, std::span<const double> hyper) {
  at::Tensor own = component(i);
  states_[i].apply(key, std::move(fresh), own, gradient, hyper);
  // Autograd must detect it if a graph that saved the old value is run backwards later.
  own.unsafeGetTensorImpl()->bump_version();
}

}  // namespace cohort::internal
