// SPDX-License-Identifier: Apache-2.0
// Prints and checks tensors inside a step, and tells the step which worker runs it.
//
//   cohort::Function step([&](cohort::Iterator& it) {
//     const auto [x, y] = it.next<at::Tensor, at::Tensor>();
//     const at::Tensor loss = torch::mse_loss(x, y);
//     cohort::print(loss, "loss");           // in the log of the worker, at every call
//     cohort::check_finite(loss, "loss");    // ends the closure with an error that says "loss"
//     optimizer.minimize(loss);
//   });
//
// Inside a scheduled function, print() and check_finite() act on the worker, at their place among
// the operators; they send nothing to a parameter server. Elsewhere they act immediately in this
// process. Both throw invalid_argument if the tensor is undefined or sparse.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "cohort/core/export.h"

namespace cohort {

// Logs a line, at every log level except off, with the task, the number of the closure, `label`,
// dtype, shape and the first values. If the closure is retried, it logs the line again.
COHORT_API void print(const at::Tensor& value, std::string_view label);

// Throws invalid_argument with the cause `application` if `value` contains a NaN or an infinity.
// The message names the closure, the number of such values, and the place of the first one. The
// closure ends; those of its earlier updates that were not sent yet are dropped.
COHORT_API void check_finite(const at::Tensor& value, std::string_view label);

// The index of the worker that runs the step
// (tf.distribute.coordinator.experimental_get_current_worker_index).
//
//   cohort::Function step([&] {
//     auto mine = at::arange(workers).eq(cohort::current_worker_index());
//     steps.assign_add(mine.to(at::kLong));
//   });
//
// An int64 scalar from 0 to the number of workers - 1. If a worker is lost, a retried closure may
// get a different index. May be called in traced and registered functions that a ClusterCoordinator
// runs, any number of times, but like a draw from an iterator in the same order for every element.
// A traced function cannot read the index on the host, only compute with it. Elsewhere it throws
// failed_precondition.
COHORT_API at::Tensor current_worker_index();

}  // namespace cohort
