// SPDX-License-Identifier: Apache-2.0
// For tests only: variables of synchronous strategies and their components.
#pragma once

#include <ATen/core/TensorBody.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/input/per_replica.h"
#include "cohort/strategy/context_fixture.h"
#include "cohort/strategy/synchronous_strategy.h"
#include "cohort/synchronous/mirrored/mirrored_variable.h"
#include "cohort/testing/cpu_devices.h"

namespace cohort::testing {

class VariableFixture : public ContextFixture {
 protected:
  using Aggregation = VariableAggregation;
  using Synchronization = VariableSynchronization;

  static double id() { return get_replica_context()->replica_id_in_sync_group(); }
  static at::Tensor scalar(double value, at::ScalarType type = at::kDouble) {
    return at::full({}, value, at::TensorOptions(type));
  }
  static at::Tensor row(const std::vector<double>& values) {
    return at::tensor(values, at::TensorOptions(at::kDouble));
  }
  static at::Tensor index(const std::vector<std::int64_t>& values) {
    return at::tensor(values, at::TensorOptions(at::kLong));
  }
  static double number(const at::Tensor& value) { return value.item<double>(); }
  static std::vector<double> numbers(const at::Tensor& value) {
    const at::Tensor flat = value.detach().to(at::kDouble).contiguous();
    return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
  }
  // The value of each component, which is a scalar.
  static std::vector<double> components(const Variable& variable) {
    std::vector<double> values;
    for (const Variable& component : internal::component_variables(variable))
      values.push_back(number(component.tensor()));
    return values;
  }
  // A value of each replica.
  static PerReplica<at::Tensor> values(double first, double second) {
    return PerReplica<at::Tensor>({scalar(first), scalar(second)});
  }
  static std::vector<double> numbers_of(const PerReplica<at::Tensor>& value) {
    std::vector<double> all;
    for (const at::Tensor& each : value.local_results()) all.push_back(number(each));
    return all;
  }
};

// Two replicas of a strategy.
template <class S>
class TwoReplicas : public VariableFixture {
 protected:
  Variable make(double value, Aggregation aggregation = Aggregation::none) {
    return two_.variable("v" + std::to_string(++made_), scalar(value),
                         {.aggregation = aggregation});
  }

  int made_ = 0;
  S two_{cpu_devices(2)};
};

}  // namespace cohort::testing
