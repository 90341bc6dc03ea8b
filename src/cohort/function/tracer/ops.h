// SPDX-License-Identifier: Apache-2.0
// Facts about single operators that the tracer needs: how they dispatch, and what their schemas do
// not declare.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string_view>

#include "cohort/function/program/program.h"

namespace cohort::function {

// Whether the value is a tensor of bools or bytes, which an index uses as a mask.
bool is_mask(const c10::IValue& value);
// Whether the op runs as other ops, which are recorded instead. `keys`: its remaining dispatch
// keys.
bool decomposes(const c10::OperatorHandle& op, c10::DispatchKeySet keys);
// Whether the op's host result depends only on the shapes and kinds of tensors.
bool is_metadata_query(std::string_view name);
// Whether some return is neither Tensor nor Tensor[].
bool returns_host_value(const c10::FunctionSchema& schema);
// Whether the shape of a result depends on tensor data.
bool has_dynamic_shape(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);
bool is_random(const c10::OperatorHandle& op);
// Whether the op writes into this argument, even if its schema does not say so (native_batch_norm's
// running statistics).
bool writes_argument(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                     std::size_t index);
// Whether the op changes only the shape of its argument, not its values (t_, unsqueeze_).
bool changes_shape_only(const c10::OperatorHandle& op);
// Whether the op may give this argument another shape in place.
bool may_reshape_argument(const c10::OperatorHandle& op, std::size_t index);
// Whether the op only makes a view of this argument, without reading its data.
bool only_views_argument(const c10::OperatorHandle& op, std::size_t index);
// Whether the op overwrites the whole of this argument, whatever it held.
bool overwrites_argument(const c10::OperatorHandle& op, std::size_t index);
// Whether the result's memory is uninitialised (aten::empty and similar ops).
bool makes_unwritten_memory(std::string_view name);
// Whether user code may fill the result's memory by hand: it is uninitialised, or of known content
// (zeros, full, arange). Such an op uses only the shape and dtype of its arguments (zeros_like).
bool makes_memory_to_fill(std::string_view name);

// Operators that read tensor data on the host and use it for shapes or loops: a program would
// freeze that data.
//
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

// Rewrites ops that depend on this LibTorch or skip checks into ones that every server runs with
// equal results.
void canonicalise(Op& op);

}  // namespace cohort::function
