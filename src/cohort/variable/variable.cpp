// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/variable.h"

#include <ATen/core/TensorBody.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <thread>
#include <utility>

#include "cohort/core/clock.h"
#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/function/variable_read.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/read_cache.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using internal::Effect;

void write_one(const Variable& variable, Effect::Kind kind, const at::Tensor& value,
               const at::Tensor& row_ids = {}, bool is_number = false) {
  const VariableWrite write{variable, kind, value, row_ids, is_number};
  write_values({&write, 1});
}

void assign_number(const Variable& variable, Effect::Kind kind, const at::Scalar& number) {
  const at::Tensor value = variable::number_value(kind, variable.name(), variable.spec(), number);
  write_one(variable, kind, value, {}, /*is_number=*/true);
}

constexpr auto kPollPause = std::chrono::milliseconds(2);

// The stand-in gets the value, so that later reads of the step have it.
void wait_in_eager_step(const Variable& variable, EagerStep& step) {
  const VariableImpl& impl = *variable.impl();
  if (step.has_written(impl)) variable.assign(impl.copy());
  const Deadline deadline = Deadline::after(step.patience());
  at::Tensor value = read_values({&variable, 1})[0];
  while (!value.gt(0).item<bool>()) {
    COHORT_CHECK(
        !deadline.has_expired(), ErrorCode::deadline_exceeded,
        "[variable.wait_until_positive] expected another thread or task to make variable "
        "'",
        variable.name(),
        "' positive; with CoordinatorOptions::run_eagerly no other closure runs meanwhile: "
        "assign it before, or schedule this one later");
    std::this_thread::sleep_for(kPollPause);
    value = read_values({&variable, 1})[0];
  }
  const c10::NoGradGuard no_grad;
  impl.tensor().detach().copy_(value);
  step.note(impl, value);
}

}  // namespace

at::Tensor Variable::read() const {
  variable::ReadCache* const cache = variable::ReadCache::for_reads_of(*this);
  at::Tensor copy = cache == nullptr ? at::Tensor() : cache->find(*this);
  const bool is_kept = copy.defined();
  if (!is_kept) copy = impl_->copy();
  const bool is_of_step = copy.defined() && impl_->is_tensor_current();
  if (!copy.defined()) copy = std::move(read_values({this, 1})[0]);
  if (cache != nullptr && !is_kept) cache->keep(*this, copy.clone());
  return is_trainable() && is_of_step ? function::with_gradient_of(tensor(), std::move(copy))
                                      : copy;
}

void Variable::assign(const at::Tensor& value) const {
  write_one(*this, Effect::Kind::assign, value);
}
void Variable::assign_add(const at::Tensor& value) const {
  write_one(*this, Effect::Kind::assign_add, value);
}
void Variable::assign_sub(const at::Tensor& value) const {
  write_one(*this, Effect::Kind::assign_sub, value);
}

void Variable::assign(const at::Scalar& number) const {
  assign_number(*this, Effect::Kind::assign, number);
}
void Variable::assign_add(const at::Scalar& number) const {
  assign_number(*this, Effect::Kind::assign_add, number);
}
void Variable::assign_sub(const at::Scalar& number) const {
  assign_number(*this, Effect::Kind::assign_sub, number);
}

void Variable::scatter_add(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_add, values, indices);
}
void Variable::scatter_sub(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_sub, values, indices);
}
void Variable::scatter_mul(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_mul, values, indices);
}
void Variable::scatter_div(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_div, values, indices);
}
void Variable::scatter_min(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_min, values, indices);
}
void Variable::scatter_max(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_max, values, indices);
}
void Variable::scatter_update(const at::Tensor& indices, const at::Tensor& values) const {
  write_one(*this, Effect::Kind::scatter_update, values, indices);
}

void Variable::wait_until_positive() const {
  COHORT_CHECK(spec().sizes->empty() && spec().dtype != kString, ErrorCode::invalid_argument,
               "[variable.wait_until_positive] expected a variable of one number, got '", name(),
               "' ", spec().to_string());
  function::Trace* const trace = function::Trace::current();
  if (trace == nullptr && EagerStep::is_scheduled_here())
    return wait_in_eager_step(*this, *EagerStep::current());
  COHORT_CHECK(trace != nullptr && !trace->runs_here(), ErrorCode::failed_precondition,
               "[variable.wait_until_positive] expected a call in a function that workers run, got "
               "one in this process (variable '",
               name(), "'); read() it in a loop here, or schedule() the function");
  trace->wait_until_positive(tensor());
}

}  // namespace cohort
