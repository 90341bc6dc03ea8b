// SPDX-License-Identifier: Apache-2.0
// Looking at tensors inside a step, wherever it runs.
//
//   cohort::Function step([&](cohort::Iterator& it) {
//     auto loss = …;
//     cohort::print(loss, "loss");           // in the log of the worker, at every call
//     cohort::check_finite(loss, "loss");    // ends the closure with an error that says "loss"
//     optimizer.minimize(loss);
//   });
//
// Inside a scheduled function both act on the worker, at their place among the operators; nothing
// is sent to a parameter server for them. Outside of one they act here and at once.
// invalid_argument for an undefined or sparse tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// A line of the log, whatever its level (but off), with the task, the number of the closure (as
// often as it is tried), `label`, dtype, shape and the first values.
COHORT_API void print(const at::Tensor& value, std::string_view label);

// invalid_argument, of application code, when `value` has a NaN or an infinity: in which closure,
// how many, and where the first one is. The updates of the closure that came before are not sent.
COHORT_API void check_finite(const at::Tensor& value, std::string_view label);

namespace function {

// For who runs a closure: lines that print() writes on this thread carry its number while the
// object lives. `function` must live as long.
class COHORT_API StepScope {
 public:
  StepScope(std::uint64_t closure, std::string_view function);
  ~StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

 private:
  const std::uint64_t closure_before_;
  const std::string_view function_before_;
};

// What the operators do when a program runs.
COHORT_API void print_now(const at::Tensor& value, std::string_view label);
COHORT_API void check_finite_now(const at::Tensor& value, std::string_view label);

}  // namespace function
}  // namespace cohort
