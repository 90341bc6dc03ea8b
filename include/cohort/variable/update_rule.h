// SPDX-License-Identifier: Apache-2.0
// An update rule: how a gradient changes one variable. It runs in the process that stores the
// variable.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/export.h"

namespace cohort::variable {

// The valid values of a hyperparameter. A fraction is in [0, 1), a positive fraction in (0, 1).
enum class HyperparameterRange : std::uint8_t {
  finite,
  not_negative,
  positive,
  fraction,
  positive_fraction
};

// Stateless. Slots (such as a momentum) belong to one optimizer and one variable. Thread-safe.
class COHORT_API UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  // "momentum", also as it is sent.
  virtual std::string_view name() const = 0;
  // The order of `hyper`: "learning_rate", …
  virtual std::span<const std::string_view> hyperparameter_names() const = 0;
  // One per hyperparameter; empty: any finite number is valid.
  virtual std::span<const HyperparameterRange> hyperparameter_ranges() const { return {}; }
  // The order of `slots`: "momentum", …
  virtual std::span<const std::string_view> slot_names() const = 0;
  // New slots for a variable, one for each of slot_names().
  virtual std::vector<at::Tensor> create_slots(const at::Tensor& variable,
                                               std::span<const double> hyper) const = 0;
  // Whether an update leaves rows as they are in which the gradient is zero: the value, and slots
  // that have rows. Then a sparse gradient costs its own rows only. Numbers below the least normal
  // one are left, which an update of all rows makes zero.
  virtual bool leaves_rows_of_zeros(std::span<const double> hyper) const {
    static_cast<void>(hyper);
    return false;
  }
  // Sets new_value = rule(value, slots, gradient) and changes the slots in place. `new_value` has
  // the dtype and sizes of `value`, and is `value` itself or shares no memory with it. All tensors
  // are contiguous and were checked with check_update(). Must not throw on the CPU, so that all
  // updates of a push are applied or none: everything that can fail is checked before. Elements are
  // independent: updating only some rows, with their rows of the slots, gives the same bits as
  // updating all.
  virtual void update(at::Tensor& new_value, const at::Tensor& value, std::span<at::Tensor> slots,
                      const at::Tensor& gradient, std::span<const double> hyper) const = 0;
  // The same in place for rows row_ids[i] of the value, and of the slots that have as many rows, by
  // row i of the gradient. `row_ids`: int64 [n], each row once, all of them rows of the value.
  // Unless a rule overrides it, the rows are copied out, updated and copied back, which throws if
  // there is no memory for them.
  virtual void update_rows(at::Tensor& value, std::span<at::Tensor> slots,
                           const at::Tensor& row_ids, const at::Tensor& gradient,
                           std::span<const double> hyper) const;
};

// Whether a slot has a row for each row of the value. Others have one number for all of them.
COHORT_API bool has_rows(const at::Tensor& slot, const at::Tensor& value);

// Throws invalid_argument, naming `variable_name`, if the gradient or the hyperparameters do not
// fit the variable and the rule; unimplemented if the variable is neither float32 nor float64. Does
// not check whether the gradient is contiguous.
COHORT_API void check_update(const UpdateRule& rule, const at::Tensor& value,
                             const at::Tensor& gradient, std::span<const double> hyper,
                             std::string_view variable_name);

// Checks only the gradient: in a trace the hyperparameters are not known yet.
COHORT_API void check_gradient(const UpdateRule& rule, const at::Tensor& value,
                               const at::Tensor& gradient, std::string_view variable_name);

// Throws invalid_argument, for example "[optimizer.adam] expected beta_1 in [0, 1), got 2" +
// `detail`.
COHORT_API void check_hyperparameter_range(HyperparameterRange range, std::string_view where,
                                           std::string_view name, double value,
                                           std::string_view detail = "");
// The same for the rule's hyperparameter number `index`.
COHORT_API void check_hyperparameter_range(const UpdateRule& rule, std::size_t index,
                                           std::string_view where, double value,
                                           std::string_view detail = "");

// Checks only the hyperparameters: their number, and that each is in its range.
COHORT_API void check_hyperparameters(const UpdateRule& rule, std::span<const double> hyper,
                                      std::string_view variable_name);

}  // namespace cohort::variable
