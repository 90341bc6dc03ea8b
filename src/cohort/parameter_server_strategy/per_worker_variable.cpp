// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>

#include <utility>

#include "cohort/core/error.h"
#include "cohort/function/inspection.h"
#include "cohort/function/trace.h"
#include "cohort/parameter_server_strategy/parameter_server_home.h"
#include "cohort/parameter_server_strategy/server_variables.h"
#include "cohort/strategy/parameter_server_strategy.h"
#include "cohort/variable/eager_step.h"
#include "cohort/variable/validation.h"
#include "cohort/variable/variable_home.h"

namespace cohort {
namespace {

using internal::Effect;

bool is_in_scheduled_step() {
  return function::Trace::current() != nullptr || EagerStep::is_scheduled_here();
}

TensorSpec spec_of_copy(TensorSpec spec) {
  COHORT_CHECK(spec.sizes && !spec.sizes->empty() && spec.sizes->front() >= 2,
               ErrorCode::invalid_argument,
               "[strategy.per_worker_variable] expected a variable with a row for each worker and "
               "one for the coordinator, got ",
               spec.to_string(), "; call ParameterServerStrategy::per_worker_variable()");
  spec.sizes->erase(spec.sizes->begin());
  return spec;
}

// The row of the copy that this thread uses: int64 [1].
at::Tensor row_here(const Variable& rows) {
  if (is_in_scheduled_step()) return current_worker_index().reshape({1});
  return at::full({1}, rows.spec().sizes->front() - 1, at::TensorOptions(at::kLong));
}

void write_copy(const PerWorkerVariable& variable, const Variable& rows, Effect::Kind kind,
                const at::Tensor& value) {
  variable::check_assign(kind, variable.name(), variable.spec(), value);
  const at::Tensor row = row_here(rows);
  switch (kind) {
    case Effect::Kind::assign_add:
      return rows.scatter_add(row, value.unsqueeze(0));
    case Effect::Kind::assign_sub:
      return rows.scatter_sub(row, value.unsqueeze(0));
    default:
      return rows.scatter_update(row, value.unsqueeze(0));
  }
}

}  // namespace

PerWorkerVariable::PerWorkerVariable(Variable rows)
    : rows_(std::move(rows)), spec_(spec_of_copy(rows_.spec())) {}

at::Tensor PerWorkerVariable::read() const {
  return embedding_lookup(rows_, row_here(rows_)).select(0, 0);
}

void PerWorkerVariable::assign(const at::Tensor& value) const {
  write_copy(*this, rows_, Effect::Kind::assign, value);
}
void PerWorkerVariable::assign_add(const at::Tensor& value) const {
  write_copy(*this, rows_, Effect::Kind::assign_add, value);
}
void PerWorkerVariable::assign_sub(const at::Tensor& value) const {
  write_copy(*this, rows_, Effect::Kind::assign_sub, value);
}

void PerWorkerVariable::assign(const at::Scalar& number) const {
  assign(variable::number_value(Effect::Kind::assign, name(), spec_, number));
}
void PerWorkerVariable::assign_add(const at::Scalar& number) const {
  assign_add(variable::number_value(Effect::Kind::assign_add, name(), spec_, number));
}
void PerWorkerVariable::assign_sub(const at::Scalar& number) const {
  assign_sub(variable::number_value(Effect::Kind::assign_sub, name(), spec_, number));
}

std::vector<at::Tensor> PerWorkerVariable::read_all() const {
  COHORT_CHECK(!is_in_scheduled_step(), ErrorCode::failed_precondition,
               "[strategy.read_all] expected a call outside of scheduled functions, got one inside "
               "(variable '",
               name(), "'); a step has the copy of its worker: read() it");
  std::vector<at::Tensor> copies = read_values({&rows_, 1})[0].unbind(0);
  copies.pop_back();
  return copies;
}

PerWorkerVariable ParameterServerStrategy::per_worker_variable(std::string name,
                                                               const at::Tensor& initial_value) {
  detail::check_can_create(*this, name);
  variable::check_tensor(name, initial_value, /*is_trainable=*/false);
  home_->check_is_no_stand_in("strategy.per_worker_variable", initial_value,
                              " (initial value of '" + name + "')");
  std::vector<std::int64_t> sizes = initial_value.sizes().vec();
  sizes.insert(sizes.begin(), static_cast<std::int64_t>(home_->connection().num_workers()) + 1);
  const at::Tensor rows = initial_value.detach().unsqueeze(0).expand(sizes).contiguous();
  // A buffer is not divided.
  const Variable made = home_->create(
      {{.name = std::move(name), .tensor = rows, .is_trainable = false, .is_buffer = true}})[0];
  home_->creation_watches().announce(made);
  return PerWorkerVariable(made);
}

}  // namespace cohort
