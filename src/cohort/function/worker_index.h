// SPDX-License-Identifier: Apache-2.0
// Which worker runs a step (tf.distribute.coordinator.experimental_get_current_worker_index).
//
//   cohort::Function step([&] {
//     auto mine = at::arange(workers).eq(cohort::current_worker_index());
//     steps.assign_add(mine.to(at::kLong));
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "cohort/core/export.h"

namespace cohort {

// The index of the worker that runs this closure: an int64 scalar of at least 0, below the number
// of workers. A closure that is retried after the loss of a worker may get another index. May be
// called inside a function that a ClusterCoordinator scheduled, traced or registered, any number of
// times but, like a draw from an iterator, in the same order for every element; elsewhere it throws
// failed_precondition. A traced function cannot read the index on the host, only compute with it.
COHORT_API at::Tensor current_worker_index();

namespace function {

// As the number of a resource in a program: the draw returns the worker's index.
constexpr std::int64_t kWorkerIndexResource = -1;

// The index as a draw returns it.
COHORT_API at::Tensor worker_index_tensor(std::int64_t index);

// For the server: sets the result of current_worker_index() on this thread while the object exists.
class COHORT_API WorkerIndexScope {
 public:
  explicit WorkerIndexScope(std::int64_t index);
  ~WorkerIndexScope();
  WorkerIndexScope(const WorkerIndexScope&) = delete;
  WorkerIndexScope& operator=(const WorkerIndexScope&) = delete;

 private:
  const std::int64_t before_;
};

}  // namespace function
}  // namespace cohort
