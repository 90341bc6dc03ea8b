// SPDX-License-Identifier: Apache-2.0
// Settings that code which runs a step makes for the step's thread, and the work of operators that
// use them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "cohort/core/export.h"
#include "cohort/core/thread_value.h"

namespace cohort::function {

// For code that runs a closure: while the object exists, lines that print() writes on this thread
// have the closure's number. `function` must outlive the object.
class COHORT_API StepScope {
 public:
  StepScope(std::uint64_t closure, std::string_view function);

 private:
  const internal::ScopedValue<std::uint64_t> closure_;
  const internal::ScopedValue<std::string_view> function_;
};

// The work of the operators when a program runs.
COHORT_API void print_now(const at::Tensor& value, std::string_view label);
COHORT_API void check_finite_now(const at::Tensor& value, std::string_view label);

// As the number of a resource in a program: the draw returns the worker's index.
constexpr std::int64_t kWorkerIndexResource = -1;

// The index as a draw returns it.
COHORT_API at::Tensor worker_index_tensor(std::int64_t index);

// For the server: sets the result of current_worker_index() on this thread while the object exists.
class COHORT_API WorkerIndexScope {
 public:
  explicit WorkerIndexScope(std::int64_t index);

 private:
  const internal::ScopedValue<std::int64_t> index_;
};

}  // namespace cohort::function
