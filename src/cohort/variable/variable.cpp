// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable.h"

#include "cohort/function/detail/variable_read.h"
#include "cohort/variable/detail/variable_home.h"

namespace cohort {
namespace {

void assign_one(const Variable& variable, internal::AssignKind kind, const at::Tensor& value) {
  const Assignment assignment{variable, kind, value};
  assign_values({&assignment, 1});
}

}  // namespace

at::Tensor Variable::read() const {
  at::Tensor copy = impl_->copy();
  if (!copy.defined()) return std::move(read_values({this, 1})[0]);
  return is_trainable() ? function::with_gradient_of(tensor(), std::move(copy)) : copy;
}

void Variable::assign(const at::Tensor& value) const {
  assign_one(*this, internal::AssignKind::assign, value);
}
void Variable::assign_add(const at::Tensor& value) const {
  assign_one(*this, internal::AssignKind::add, value);
}
void Variable::assign_sub(const at::Tensor& value) const {
  assign_one(*this, internal::AssignKind::sub, value);
}

}  // namespace cohort
