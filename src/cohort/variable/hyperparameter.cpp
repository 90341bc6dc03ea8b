// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/hyperparameter.h"

#include <ATen/ops/empty.h>

#include <atomic>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"

namespace cohort {
namespace {

bool is_hyperparameter(const at::Tensor& value) {
  return value.dim() == 0 && value.scalar_type() == at::ScalarType::Double &&
         value.device().is_cpu();
}

std::atomic_ref<double> cell(const at::Tensor& hyperparameter) {
  return std::atomic_ref<double>(*hyperparameter.data_ptr<double>());
}

}  // namespace

at::Tensor make_hyperparameter(double value) {
  at::Tensor result = at::empty({}, at::TensorOptions(at::ScalarType::Double));
  set_hyperparameter(result, value);
  return result;
}

void set_hyperparameter(const at::Tensor& hyperparameter, double value) {
  COHORT_ASSERT(is_hyperparameter(hyperparameter));
  cell(hyperparameter).store(value, std::memory_order_relaxed);
}

double hyperparameter_value(const at::Tensor& hyperparameter) {
  COHORT_CHECK(
      hyperparameter.defined() && hyperparameter.dim() == 0, ErrorCode::invalid_argument,
      "[variable.apply] expected hyperparameters as scalar tensors, got ",
      hyperparameter.defined() ? TensorSpec::of(hyperparameter).to_string() : "an undefined one");
  if (!is_hyperparameter(hyperparameter)) return hyperparameter.item<double>();
  return cell(hyperparameter).load(std::memory_order_relaxed);
}

at::Tensor hyperparameter_snapshot(const at::Tensor& value) {
  if (!is_hyperparameter(value)) return value.detach().clone();
  return make_hyperparameter(hyperparameter_value(value));
}

}  // namespace cohort
