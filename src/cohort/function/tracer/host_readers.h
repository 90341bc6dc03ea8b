// SPDX-License-Identifier: Apache-2.0
// Operators that read tensor data on the host and use it for shapes or loops: a program would
// freeze that data.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>

namespace cohort::function {

// Whether the op reads this argument's data on the host, so that it must be the same in every run.
bool reads_on_host(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                   std::size_t index);
// The only argument whose data this result depends on; -1: it may depend on all.
int source_of_result(const c10::OperatorHandle& op, std::size_t result);
// Whether the number of values in the result, a sparse tensor, depends on the data of the
// arguments.
bool has_size_of_data(const c10::OperatorHandle& op);
// Whether the op returns the values or the indices of a sparse tensor as a dense tensor.
bool takes_sparse_apart(const c10::OperatorHandle& op);
// Whether the op uses only the shape and dtype of its arguments (zeros_like).
bool reads_no_data(const c10::OperatorHandle& op);

}  // namespace cohort::function
