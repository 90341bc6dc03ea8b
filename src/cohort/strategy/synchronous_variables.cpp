// SPDX-License-Identifier: Apache-2.0
// What StrategyExtended asks a synchronous strategy about variables.
#include <ATen/core/TensorBody.h>

#include "cohort/input/input_host.h"
#include "cohort/strategy/mirrored/mirrored_home.h"
#include "cohort/strategy/mirrored/mirrored_variable.h"
#include "cohort/strategy/synchronous_strategy.h"

namespace cohort {

bool SynchronousStrategy::owns(const Variable& variable) const {
  return variable.impl()->home().get() == static_cast<const VariableHome*>(home_.get());
}

std::vector<Variable> SynchronousStrategy::components_of(const Variable& variable) const {
  if (!owns(variable)) return {variable};
  return internal::component_variables(variable);
}

std::vector<std::string> SynchronousStrategy::devices_of(const Variable& variable) const {
  const std::vector<std::string> devices = parameter_devices();
  if (!owns(variable)) return {devices.front()};
  const std::optional<Variable> container = internal::container_of(variable);
  if (!container) return devices;
  const std::vector<Variable> components = internal::component_variables(*container);
  for (std::size_t i = 0; i < components.size() && i < devices.size(); ++i) {
    if (components[i] == variable) return {devices[i]};
  }
  return {devices.front()};
}

internal::StrategyTraits SynchronousStrategy::traits() const {
  return {.is_multi_worker = num_workers() > 1,
          .is_first_worker = worker() == 0,
          .is_between_graph = host()->group != nullptr,
          .updates_only_own_variables = host()->wraps_values,
          .runs_on_all_devices = true,
          .cross_device_ops = home_->cross_device_ops()};
}

internal::StrategyTraits CentralStorageStrategy::traits() const {
  return {.is_between_graph = true};
}

}  // namespace cohort
