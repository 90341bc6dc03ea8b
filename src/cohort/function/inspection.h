// SPDX-License-Identifier: Apache-2.0
// Prints and checks tensors inside a step, wherever it runs.
//
//   cohort::Function step([&](cohort::Iterator& it) {
//     const auto [x, y] = it.next<at::Tensor, at::Tensor>();
//     const at::Tensor loss = torch::mse_loss(x, y);
//     cohort::print(loss, "loss");           // in the log of the worker, at every call
//     cohort::check_finite(loss, "loss");    // ends the closure with an error that says "loss"
//     optimizer.minimize(loss);
//   });
//
// Inside a scheduled function both act on the worker, at their place among the operators; nothing
// is sent to a parameter server for them. Outside of one they act at once in this process.
// An undefined or sparse tensor is invalid_argument.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// Logs a line, at every log level but off, with the task, the number of the closure, `label`,
// dtype, shape and the first values. A closure that is retried logs it again.
COHORT_API void print(const at::Tensor& value, std::string_view label);

// Throws invalid_argument with the cause `application` when `value` has a NaN or an infinity. The
// message says in which closure, how many, and where the first one is. The closure's earlier
// updates are not sent.
COHORT_API void check_finite(const at::Tensor& value, std::string_view label);

namespace function {

// For code that runs a closure: while the object exists, lines that print() writes on this thread
// have the closure's number. `function` must outlive the object.
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

// The work of the operators when a program runs.
COHORT_API void print_now(const at::Tensor& value, std::string_view label);
COHORT_API void check_finite_now(const at::Tensor& value, std::string_view label);

}  // namespace function
}  // namespace cohort
