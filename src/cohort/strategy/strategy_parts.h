// SPDX-License-Identifier: Apache-2.0
// The part of a strategy that makes its variables. Upper modules implement it: `synchronous` keeps
// variables in this process, `parameter_server_strategy` on servers.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/strategy/replicated.h"
#include "cohort/strategy/strategy.h"
#include "cohort/variable/initializer.h"
#include "cohort/variable/variable.h"

namespace cohort::internal {

// Makes the variables and modules of a strategy, and knows where they are. Thread-safe.
class StrategyVariables {
 public:
  virtual ~StrategyVariables() = default;
  // Throw as Strategy::variable() does.
  virtual Variable create(std::string name, const at::Tensor& initial_value,
                          const VariableOptions& options) = 0;
  virtual Variable create(std::string name, const TensorSpec& spec, const Initializer& initializer,
                          const VariableOptions& options) = 0;
  // The seed for the factory of replicate(): another one for each module.
  virtual std::uint64_t next_module_seed() = 0;
  // Makes all or none of the variables "<name>/<name of the tensor>". `copies`: as many as
  // num_modules(), one for each replica that has its own module.
  virtual ModuleVariables place_module(std::string_view name, std::vector<ModuleCopy> copies) = 0;
  virtual int num_modules() const = 0;
  virtual bool owns(const Variable& variable) const = 0;
  // The components of a variable and their devices; the variable itself if it has one value. Called
  // for variables of this strategy, and for others unless it updates only its own.
  virtual std::vector<Variable> components_of(const Variable& variable) const = 0;
  virtual std::vector<std::string> devices_of(const Variable& variable) const = 0;
};

}  // namespace cohort::internal
