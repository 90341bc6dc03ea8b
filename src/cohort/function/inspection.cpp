// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/inspection.h"
#include "cohort/function/step_scope.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/scalar_tensor.h>

#include <sstream>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/function/program/value_text.h"
#include "cohort/function/trace.h"

namespace cohort {
namespace {

thread_local std::uint64_t closure_here = 0;  // 0: none
thread_local std::string_view function_here;
thread_local std::int64_t index_here = -1;  // of a worker; -1: none

void check_dense(const at::Tensor& value, std::string_view call, std::string_view label) {
  COHORT_CHECK(value.defined() && value.layout() == at::kStrided, ErrorCode::invalid_argument,
               "[function.", call, "] expected a dense tensor, got ",
               value.defined() ? "a sparse one; call to_dense() first" : "an undefined one",
               " (labelled '", label, "')");
}

// "[1, 2]", the position of element `flat` of a row-major tensor.
std::string index_text(std::int64_t flat, at::IntArrayRef sizes) {
  std::string text;
  for (std::size_t i = sizes.size(); i-- > 0; flat /= sizes[i])
    text = std::to_string(flat % sizes[i]) + (text.empty() ? "" : ", ") + text;
  return "[" + text + "]";
}

}  // namespace

void print(const at::Tensor& value, std::string_view label) {
  check_dense(value, "print", label);
  if (function::Trace* trace = function::Trace::current())
    return trace->inspect("cohort::print", label, value);
  function::print_now(value, label);
}

void check_finite(const at::Tensor& value, std::string_view label) {
  check_dense(value, "check_finite", label);
  if (function::Trace* trace = function::Trace::current())
    return trace->inspect("cohort::check_finite", label, value);
  function::check_finite_now(value, label);
}

at::Tensor current_worker_index() {
  if (function::Trace* trace = function::Trace::current())
    return trace->iterator_next(function::kWorkerIndexResource).at(0);
  COHORT_CHECK(index_here >= 0, ErrorCode::failed_precondition,
               "[function.current_worker_index] expected a call inside a scheduled function, got "
               "one elsewhere, where no worker runs; give the function to "
               "ClusterCoordinator::schedule()");
  return function::worker_index_tensor(index_here);
}

namespace function {

StepScope::StepScope(std::uint64_t closure, std::string_view function)
    : closure_(closure_here, closure), function_(function_here, function) {}

at::Tensor worker_index_tensor(std::int64_t index) { return at::scalar_tensor(index, at::kLong); }

WorkerIndexScope::WorkerIndexScope(std::int64_t index) : index_(index_here, index) {}

void print_now(const at::Tensor& value, std::string_view label) {
  std::ostringstream text;
  if (closure_here != 0) text << "closure " << closure_here << " of '" << function_here << "': ";
  text << label << " = " << value_text(value);
  log_output(text.str());
}

void check_finite_now(const at::Tensor& value, std::string_view label) {
  const at::Tensor is_bad = at::isfinite(value.detach()).logical_not().flatten();
  const std::int64_t count = is_bad.sum().item<std::int64_t>();
  if (count == 0) return;
  const auto first = is_bad.to(at::kByte).argmax().item<std::int64_t>();
  std::ostringstream text;
  text << "[function.check_finite] ";
  if (closure_here != 0) text << "closure " << closure_here << " of '" << function_here << "': ";
  text << "expected finite values in '" << label << "', got " << count << " of " << is_bad.numel()
       << " that are not in " << value_text(value) << "; the first one is at "
       << index_text(first, value.sizes()) << ", "
       << value_text(value.detach().flatten().select(0, first));
  throw Error(ErrorCode::invalid_argument, text.str(), ErrorCause::application);
}

}  // namespace function
}  // namespace cohort
