// SPDX-License-Identifier: Apache-2.0
#include "cohort/variable/update_rule.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TensorBody.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>

#include <cmath>

#include "cohort/core/error.h"
#include "cohort/core/tensor_spec.h"
#include "cohort/variable/row_gradient.h"

namespace cohort::variable {
namespace {

std::string names_of(std::span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

bool is_in(HyperparameterRange range, double value) {
  if (!std::isfinite(value)) return false;
  switch (range) {
    case HyperparameterRange::finite:
      return true;
    case HyperparameterRange::not_negative:
      return value >= 0.0;
    case HyperparameterRange::positive:
      return value > 0.0;
    case HyperparameterRange::fraction:
      return value >= 0.0 && value < 1.0;
    case HyperparameterRange::positive_fraction:
      return value > 0.0 && value < 1.0;
  }
  return false;
}

// "a finite epsilon > 0"
std::string expected_of(HyperparameterRange range, std::string_view name) {
  if (range == HyperparameterRange::fraction) return std::string(name) + " in [0, 1)";
  if (range == HyperparameterRange::positive_fraction) return std::string(name) + " in (0, 1)";
  std::string text = "a finite " + std::string(name);
  if (range == HyperparameterRange::not_negative) text += " >= 0";
  if (range == HyperparameterRange::positive) text += " > 0";
  return text;
}

HyperparameterRange range_of(const UpdateRule& rule, std::size_t index) {
  const auto ranges = rule.hyperparameter_ranges();
  return ranges.empty() ? HyperparameterRange::finite : ranges[index];
}

}  // namespace

bool has_rows(const at::Tensor& slot, const at::Tensor& value) {
  return slot.dim() > 0 && slot.size(0) == value.size(0);
}

void UpdateRule::update_rows(at::Tensor& value, std::span<at::Tensor> slots,
                             const at::Tensor& row_ids, const at::Tensor& gradient,
                             std::span<const double> hyper) const {
  const at::AutoDispatchBelowADInplaceOrView raw;  // autograd knows nothing of an update
  at::Tensor rows = value.index_select(0, row_ids);
  std::vector<at::Tensor> of_slots;
  for (const at::Tensor& slot : slots)
    of_slots.push_back(has_rows(slot, value) ? slot.index_select(0, row_ids) : slot);
  update(rows, rows, of_slots, gradient, hyper);
  value.index_copy_(0, row_ids, rows);
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (has_rows(slots[i], value)) slots[i].index_copy_(0, row_ids, of_slots[i]);
}

void check_hyperparameter_range(HyperparameterRange range, std::string_view where,
                                std::string_view name, double value, std::string_view detail) {
  COHORT_CHECK(is_in(range, value), ErrorCode::invalid_argument, "[", where, "] expected ",
               expected_of(range, name), ", got ", value, detail);
}

void check_hyperparameter_range(const UpdateRule& rule, std::size_t index, std::string_view where,
                                double value, std::string_view detail) {
  check_hyperparameter_range(range_of(rule, index), where, rule.hyperparameter_names()[index],
                             value, detail);
}

void check_gradient(const UpdateRule& rule, const at::Tensor& value, const at::Tensor& gradient,
                    std::string_view variable_name) {
  const at::ScalarType dtype = value.scalar_type();
  COHORT_CHECK(dtype == at::ScalarType::Float || dtype == at::ScalarType::Double,
               ErrorCode::unimplemented,
               "[variable.apply] expected a variable of float32 or float64, got ",
               dtype_name(dtype), " (variable '", variable_name, "', rule '", rule.name(),
               "'); keep the variable in float32 and cast its value in the ", "step");
  COHORT_CHECK(gradient.defined(), ErrorCode::invalid_argument,
               "[variable.apply] expected a gradient, got an ", "undefined tensor (variable '",
               variable_name, "', rule '", rule.name(), "'); leave out variables that have none");
  COHORT_CHECK(gradient.layout() == at::kStrided || is_row_gradient(gradient),
               ErrorCode::invalid_argument,
               "[variable.apply] expected a dense gradient, or a sparse COO one of whole rows, got "
               "another layout (variable '",
               variable_name, "', rule '", rule.name(), "'); make it dense with to_dense()");
  const TensorSpec expected = TensorSpec::of(value);
  const TensorSpec got = TensorSpec::of(gradient);
  COHORT_CHECK(expected == got, ErrorCode::invalid_argument,
               "[variable.apply] expected a gradient of ", expected.to_string(), ", got ",
               got.to_string(), " (variable '", variable_name, "', rule '", rule.name(),
               "'); a gradient has its variable's dtype and shape");
  COHORT_CHECK(gradient.device() == value.device(), ErrorCode::unimplemented,
               "[variable.apply] expected a gradient on ", value.device().str(),
               " as the variable's value, got one on ", gradient.device().str(), " (variable '",
               variable_name, "'); move it with to()");
}

void check_hyperparameters(const UpdateRule& rule, std::span<const double> hyper,
                           std::string_view variable_name) {
  const auto names = rule.hyperparameter_names();
  COHORT_CHECK(hyper.size() == names.size(), ErrorCode::invalid_argument,
               "[variable.apply] expected ", names.size(), " hyperparameters (", names_of(names),
               "), got ", hyper.size(), " (variable '", variable_name, "', rule '", rule.name(),
               "')");
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (is_in(range_of(rule, i), hyper[i])) continue;
    const std::string detail =
        " (variable '" + std::string(variable_name) + "', rule '" + std::string(rule.name()) + "')";
    check_hyperparameter_range(rule, i, "variable.apply", hyper[i], detail);
  }
}

void check_update(const UpdateRule& rule, const at::Tensor& value, const at::Tensor& gradient,
                  std::span<const double> hyper, std::string_view variable_name) {
  check_gradient(rule, value, gradient, variable_name);
  check_hyperparameters(rule, hyper, variable_name);
}

}  // namespace cohort::variable
