// SPDX-License-Identifier: Apache-2.0
// Components of variables, which are variables of their own.
#include <ATen/core/TensorBody.h>

#include "cohort/synchronous/mirrored/mirrored_variable.h"

namespace cohort::internal {

ComponentVariable::ComponentVariable(MirroredVariable& container, std::size_t index)
    : container_(container),
      index_(index),
      name_(container.name() + (index == 0 ? "" : "/replica_" + std::to_string(index))) {}

const at::Tensor& ComponentVariable::tensor() const {
  container_.check_use("tensor");
  return container_.component(index_);
}

at::Tensor ComponentVariable::copy() const {
  container_.check_use("read");
  return container_.component(index_).detach().clone();
}

MirroredTarget target_of(const Variable& variable) {
  VariableImpl& impl = *variable.impl();
  if (const auto* const component = dynamic_cast<ComponentVariable*>(&impl))
    return {component->container(), component->index()};
  return {static_cast<MirroredVariable&>(impl)};
}

std::vector<Variable> component_variables(const Variable& variable) {
  auto* const container = dynamic_cast<MirroredVariable*>(variable.impl().get());
  if (container == nullptr) return {variable};
  std::vector<Variable> components;
  for (std::size_t i = 0; i < container->size(); ++i)
    components.push_back(container->component_variable(i));
  return components;
}

}  // namespace cohort::internal
