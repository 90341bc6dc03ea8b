// SPDX-License-Identifier: Apache-2.0
// What the tracer has to know of single operators: how they dispatch, and what their schemas do not
// say.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <span>
#include <string>
#include <string_view>

#include "cohort/function/internal/program.h"

namespace cohort::function {

// The op runs as other ops, which are recorded in its place. `keys`: what is left of its dispatch.
bool decomposes(const c10::OperatorHandle& op, c10::DispatchKeySet keys);
// The op's host result depends on shapes and kinds only.
bool is_metadata_query(std::string_view name);
// Some return is neither Tensor nor Tensor[].
bool returns_host_value(const c10::FunctionSchema& schema);
// The shape of a result depends on tensor data.
bool has_dynamic_shape(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments);
bool is_random(const c10::OperatorHandle& op);
// The op writes into this argument, also where its schema is silent (native_batch_norm's running
// statistics).
bool writes_argument(const c10::OperatorHandle& op, std::span<const c10::IValue> arguments,
                     std::size_t index);
// What the op writes is the shape of its argument, and none of its values (t_, unsqueeze_).
bool changes_shape_only(const c10::OperatorHandle& op);
// The op gives a view of this argument and reads nothing of it.
bool only_views_argument(const c10::OperatorHandle& op, std::size_t index);
// A written argument is overwritten whole, whatever it held.
bool overwrites_argument(const c10::OperatorHandle& op, std::size_t index);
// The result's memory holds nothing yet (aten::empty and its kin).
bool makes_unwritten_memory(std::string_view name);
// The result is memory that people fill by hand: unwritten, or of known content (zeros, full,
// arange).
bool makes_memory_to_fill(std::string_view name);
// Rewrites ops that depend on this LibTorch or skip checks into ones that every server runs with
// equal results.
void canonicalise(Op& op);

}  // namespace cohort::function
