// SPDX-License-Identifier: Apache-2.0
// Prints and checks tensors inside a step, and says which worker runs it.
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

// Which worker runs a step (tf.distribute.coordinator.experimental_get_current_worker_index).
//
//   cohort::Function step([&] {
//     auto mine = at::arange(workers).eq(cohort::current_worker_index());
//     steps.assign_add(mine.to(at::kLong));
//   });
//
// The index of the worker that runs this closure: an int64 scalar of at least 0, below the number
// of workers. A closure that is retried after the loss of a worker may get another index. May be
// called inside a function that a ClusterCoordinator scheduled, traced or registered, any number of
// times but, like a draw from an iterator, in the same order for every element; elsewhere it throws
// failed_precondition. A traced function cannot read the index on the host, only compute with it.
COHORT_API at::Tensor current_worker_index();

}  // namespace cohort
