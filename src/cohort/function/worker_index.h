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

// A scalar, int64: 0 to the number of workers - 1, of the worker that runs this closure; after the
// loss of a worker that may be another one than the first time. Inside a function that a
// ClusterCoordinator scheduled, a registered one too; there as often as wanted, but like a draw
// from an iterator in the same order for every element. Elsewhere failed_precondition. A traced
// function cannot read it as a number of the host: compute with it.
COHORT_API at::Tensor current_worker_index();

namespace function {

// In the place of a resource's number: a draw of the index, in a program.
constexpr std::int64_t kWorkerIndexResource = -1;

// The index as a draw gives it.
COHORT_API at::Tensor worker_index_tensor(std::int64_t index);

// For the server: what current_worker_index() gives on this thread while it stands.
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
