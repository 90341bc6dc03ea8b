// SPDX-License-Identifier: Apache-2.0
// Options whose default, or whose existence, depends on the formula.
#pragma once

#include <optional>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/optimizer/optimizers.h"

namespace cohort::optimizer {

constexpr bool is_tensorflow(OptimizerFormula formula) {
  return formula == OptimizerFormula::tensorflow;
}

// The defaults of an option. A call returns what is set, or the default of this formula.
struct ByFormula {
  double torch = 0.0;
  double tensorflow = 0.0;
  template <class T>
  T operator()(const std::optional<T>& set, OptimizerFormula formula) const {
    return set.has_value() ? *set : T(is_tensorflow(formula) ? tensorflow : torch);
  }
};

// For an option that only torch::optim's formula has.
inline void expect_torch_only(std::string_view optimizer, std::string_view option, bool is_set) {
  COHORT_CHECK(!is_set, ErrorCode::unimplemented, "[optimizer.", optimizer, "] expected no ",
               option,
               " with OptimizerFormula::tensorflow, whose rule has none; leave it out, or leave "
               "out .formula");
}

}  // namespace cohort::optimizer
