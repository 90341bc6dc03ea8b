// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/internal/local_variable.h"

#include <c10/core/GradMode.h>

#include "cohort/core/error.h"
#include "cohort/function/detail/trace.h"
#include "cohort/function/detail/variable_read.h"
#include "cohort/variable/detail/replica_count.h"
#include "cohort/variable/internal/checks.h"

namespace cohort {
namespace variable {

using function::Trace;

LocalVariable::LocalVariable(std::string name, at::Tensor value, bool is_trainable)
    : name_(std::move(name)),
      spec_(TensorSpec::of(value)),
      is_trainable_(is_trainable),
      value_(std::move(value)),
      named_(value_, name_) {
  check_tensor(name_, value_, is_trainable_);
}

at::Tensor LocalVariable::read() const {
  at::Tensor copy = copied();
  return is_trainable_ ? function::with_gradient_of(value_, std::move(copy)) : copy;
}

at::Tensor LocalVariable::copied() const {
  if (Trace::current() != nullptr) return value_.detach().clone();
  const Lock lock(mutex_);
  return value_.detach().clone();
}

void LocalVariable::assign(AssignKind kind, const at::Tensor& value) {
  check_assign(kind, name_, spec_, value);
  check_one_replica("variable.assign");
  if (Trace* trace = Trace::current()) {
    trace->assign(kind, value_, value);
    return;
  }
  const c10::NoGradGuard no_grad;
  const Lock lock(mutex_);
  switch (kind) {
    case AssignKind::assign:
      value_.copy_(value);
      break;
    case AssignKind::add:
      value_.add_(value);
      break;
    case AssignKind::sub:
      value_.sub_(value);
      break;
  }
}

void LocalVariable::apply(const UpdateRule& rule, const at::Tensor& gradient,
                          std::span<const at::Tensor> hyper) {
  check_one_replica("variable.apply");
  if (Trace* trace = Trace::current()) {
    check_gradient(rule, value_, gradient, name_);
    trace->apply(rule.name(), value_, gradient, hyper);
    return;
  }
  const std::vector<double> values = values_of(hyper);
  check_update(rule, value_, gradient, values, name_);
  const at::Tensor dense = gradient.detach().resolve_conj().resolve_neg().contiguous();
  const Lock lock(mutex_);
  auto found = slots_.find(rule.name());
  if (found == slots_.end()) {
    found = slots_.emplace(std::string(rule.name()), rule.create_slots(value_, values)).first;
  }
  rule.update(value_, value_, found->second, dense, values);
  // Autograd must detect it if a graph that saved the old value is run backwards later.
  value_.unsafeGetTensorImpl()->bump_version();
}

}  // namespace variable

Variable local_variable(std::string name, at::Tensor value, bool is_trainable) {
  COHORT_CHECK(value.defined(), ErrorCode::invalid_argument,
               "[variable.create] expected a tensor, got an undefined one (variable '", name, "')");
  // What read() of another variable gave is an initial value, as in tf.Variable(v.read_value()).
  if (function::is_computed_from_reads(value))
    value = value.is_view() ? value.detach() : value.detach_();
  if (is_trainable && value.is_leaf() && value.is_floating_point()) value.set_requires_grad(true);
  return Variable(
      std::make_shared<variable::LocalVariable>(std::move(name), std::move(value), is_trainable));
}

}  // namespace cohort
