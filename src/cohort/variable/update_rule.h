// SPDX-License-Identifier: Apache-2.0
// How one variable changes when a gradient comes: applied next to the variable, wherever that is.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort {

// Stateless; slots belong to the variable. Thread-safe.
class COHORT_API UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // The name on the wire: "momentum".
  virtual std::string_view name() const = 0;
  // The order of `hyper`: "learning_rate", …
  virtual std::span<const std::string_view> hyper_names() const = 0;
  // The order of `slots`: "momentum", …
  virtual std::span<const std::string_view> slot_names() const = 0;
  // Fresh slots for a variable, as many as slot_names().
  virtual std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                               std::span<const double> hyper) const = 0;
  // new_value = rule(value, slots, gradient); slots change in place. `new_value` has value's dtype
  // and sizes and is value itself or shares no memory with it. All are contiguous and were checked
  // with check_update(). Elements do not depend on each other: rows updated alone, with their rows
  // of the slots, give the same bits as the whole.
  virtual void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                      const at::Tensor& gradient, std::span<const double> hyper) const = 0;
};

// Throws invalid_argument naming `variable_name` when gradient or hyper do not fit the variable and
// the rule, unimplemented for a variable that is neither float32 nor float64. Whether the gradient
// is contiguous is the caller's business.
COHORT_API void check_update(const UpdateRule& rule, const at::Tensor& value,
                             const at::Tensor& gradient, std::span<const double> hyper,
                             std::string_view variable_name);

// Its part about the gradient, for where the hyperparameters are not known yet (in a trace).
COHORT_API void check_gradient(const UpdateRule& rule, const at::Tensor& value,
                               const at::Tensor& gradient, std::string_view variable_name);

// Its part about `hyper`: as many as the rule has, all finite.
COHORT_API void check_hyper(const UpdateRule& rule, std::span<const double> hyper,
                            std::string_view variable_name);

}  // namespace cohort
