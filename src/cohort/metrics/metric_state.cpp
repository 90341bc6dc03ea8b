// SPDX-License-Identifier: Apache-2.0
#include "cohort/metrics/metric_state.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

#include "cohort/core/effect_handler.h"
#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/variable_home.h"

namespace cohort::metrics {

using internal::Effect;

MetricState::MetricState(std::string name, const at::Tensor& zeros)
    : name_(std::move(name)),
      strategy_(has_strategy() ? &get_strategy() : nullptr),
      rows_(make("rows", at::zeros({}, at::TensorOptions(at::kLong)), nullptr)),
      bad_rows_(make("bad_rows", at::zeros({}, at::TensorOptions(at::kLong)), &rows_)),
      sums_(make("sums", zeros, &rows_)) {}

Variable MetricState::make(const char* part, const at::Tensor& zeros,
                           const Variable* beside) const {
  std::string name = name_ + "/" + part;
  if (strategy_ == nullptr) return local_variable(std::move(name), zeros, /*is_trainable=*/false);
  VariableOptions options{.is_trainable = false,
                          .synchronization = VariableSynchronization::on_read,
                          .aggregation = VariableAggregation::sum};
  if (beside != nullptr) options.colocate_with = *beside;
  return get_strategy().variable(std::move(name), zeros, options);
}

void MetricState::add(const RowFilter& rows, const at::Tensor& sums) const {
  std::vector<VariableWrite> writes{{sums_, Effect::Kind::assign_add, sums},
                                    {rows_, Effect::Kind::assign_add, rows.count()}};
  if (const at::Tensor bad = rows.bad_count(); bad.defined())
    writes.push_back({bad_rows_, Effect::Kind::assign_add, bad});
  write_values(writes);
}

void MetricState::add_mean(const RowFilter& rows, const at::Tensor& of_rows) const {
  const at::Tensor weights = rows.weights();
  const at::Tensor values = rows.masked(of_rows).to(at::kDouble);
  add(rows, at::stack({weights.mul(values).sum(), weights.sum()}));
}

void MetricState::check_outside_step(std::string_view call) const {
  const ReplicaContext* const replica = get_replica_context();
  const bool is_in_replica =
      replica != nullptr && strategy_ != nullptr && &replica->strategy() == strategy_;
  COHORT_CHECK(!is_in_replica && function::Trace::current() == nullptr,
               ErrorCode::failed_precondition, "[metrics.", call,
               "] expected a call outside of a step for metric '", name_,
               "', got one inside, where only a part of its rows is known; call it after run(), or "
               "after join()");
}

MetricState::Totals MetricState::totals(std::string_view call) const {
  check_outside_step(call);
  const std::vector<Variable> all = variables();
  const std::vector<at::Tensor> values = read_values(all);
  const std::int64_t rows = values[0].item<std::int64_t>();
  const std::int64_t bad = values[1].item<std::int64_t>();
  COHORT_CHECK(bad == 0, ErrorCode::invalid_argument, "[metrics.", call,
               "] expected rows without NaN, and with labels in their range, got ", bad,
               " others besides ", rows, " good ones (metric '", name_,
               "'); update() left them out, since it could not read their values: call the step "
               "on the CPU with run(), or with CoordinatorOptions::run_eagerly, whose error names "
               "the row; reset() forgets them");
  return {values[2].cpu(), rows};
}

void MetricState::check_has_rows(bool has_rows) const {
  COHORT_CHECK(has_rows, ErrorCode::failed_precondition,
               "[metrics.result] expected rows in metric '", name_,
               "', got none since it was made or reset(); call update() first, with weights above "
               "0");
}

double MetricState::mean() const {
  const at::Tensor sums = totals("result").sums;
  const double weight = sums[1].item<double>();
  check_has_rows(weight > 0);
  return sums[0].item<double>() / weight;
}

void MetricState::reset() const {
  check_outside_step("reset");
  std::vector<VariableWrite> writes;
  for (const Variable& each : variables()) {
    const at::TensorOptions options(each.spec().dtype);
    writes.push_back({each, Effect::Kind::assign, at::zeros(*each.spec().sizes, options)});
  }
  write_values(writes);
}

}  // namespace cohort::metrics
