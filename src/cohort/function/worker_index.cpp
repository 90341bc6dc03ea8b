// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/inspection.h"
#include "cohort/function/step_scope.h"

#include <ATen/ops/scalar_tensor.h>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"

namespace cohort {
namespace {

thread_local std::int64_t index_here = -1;  // -1: no worker

}  // namespace

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

at::Tensor worker_index_tensor(std::int64_t index) { return at::scalar_tensor(index, at::kLong); }

WorkerIndexScope::WorkerIndexScope(std::int64_t index) : index_(index_here, index) {}

}  // namespace function
}  // namespace cohort
