// SPDX-License-Identifier: Apache-2.0
// A variable that is one value of another one, which has one for each replica.
#pragma once

#include <cstddef>
#include <optional>

#include "cohort/variable/variable.h"

namespace cohort::internal {

class ComponentImpl : public VariableImpl {
 public:
  // The variable of whose values it is number `index`, of so many.
  virtual Variable whole() const = 0;
  virtual std::size_t index() const = 0;
  virtual std::size_t count() const = 0;
};

// The variable of which this is a component; nullopt if it is none.
std::optional<Variable> container_of(const Variable& variable);

}  // namespace cohort::internal
