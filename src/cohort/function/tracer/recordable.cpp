// SPDX-License-Identifier: Apache-2.0
// Which operators a program can have: refuses those that a server would run otherwise, or not at
// all.
#include <c10/core/DefaultDtype.h>

#include <algorithm>

#include "cohort/function/program/allow_list.h"
#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/ops.h"
#include "cohort/function/tracer/recorder.h"
#include "cohort/function/tracer/rewrites/rewrites.h"

namespace cohort::function {

// A rewritten resize_ gives new memory to a tensor that has none.
void Recorder::expect_own_memory_grows(const c10::OperatorHandle& op, Arguments arguments) {
  if (!resizes_argument(op.operator_name().name) || !arguments[0].isTensor()) return;
  const at::Tensor& tensor = arguments[0].toTensor();
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage().nbytes() != 0) return;
  if (values_.is_result(tensor) && tensor.storage().use_count() == 1) return;
  refuse(
      "it would give new memory to an empty tensor that was made outside the function, or whose "
      "memory another tensor has too; make one of the new size (torch::zeros, torch::empty) "
      "instead");
}

void Recorder::expect_recordable(const c10::OperatorHandle& op, Arguments arguments) {
  const std::string& name = op.operator_name().name;
  if (returns_host_value(op.schema())) {
    if (is_batch_counter(arguments[0])) {
      refuse(
          "BatchNorm without a momentum divides by the number of batches, which it reads on the "
          "host; give it a momentum, as BatchNormOptions(features).momentum(0.1)");
    }
    refuse(
        "its result is a host value that depends on tensor data; a traced function cannot branch "
        "on it or compute with it on the host: keep it a tensor (torch::where, clamp; "
        "cohort::clip_by_global_norm() "
        "in place of clip_grad_norm_()), or do this "
        "outside the function");
  }
  if (has_dynamic_shape(op, arguments) &&
      !(is_allowed_op(name) && has_fixed_shape(op, arguments))) {
    if (is_called_inside("AdaptiveLogSoftmaxWithLossImpl")) {
      refuse(
          "AdaptiveLogSoftmaxWithLoss selects rows by their labels, and a program has fixed "
          "shapes; "
          "torch::nll_loss(module->log_prob(input), target) is the same loss without");
    }
    if (!composites_.empty() && composites_.back() == "aten::embedding_sparse_backward") {
      refuse(
          "the sparse gradient of an embedding leaves out the rows of padding_idx, so its shape "
          "depends on tensor data, and a program has fixed shapes; make the embedding without "
          "sparse(true)");
    }
    refuse(
        "the shape of its result depends on tensor data, and a program has fixed shapes; use "
        "torch::where or multiply by the mask");
  }
  if (!is_allowed_op(name)) refuse("the operator is not on the list of those that a server runs");
}

bool Recorder::is_batch_counter(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return false;
  const TracedMemory* memory = values_.memory_of(value.toTensor());
  if (memory == nullptr || memory->origin != Origin::variable) return false;
  return program_.variables[static_cast<std::size_t>(memory->variable)].name.ends_with(
      "num_batches_tracked");
}

void Recorder::expect_random_state() const {
  if (state_.random_state() == random_state_) return;
  refuse(
      "the state of the default random generator was changed inside the function by something "
      "else than a random operator (torch::manual_seed(), set_state(), a number drawn on the host, "
      "another thread), and a server would ignore that: every run of a traced function gets its "
      "own seed. Seed outside the function, draw with operators alone, and keep what was drawn "
      "(a dropout mask) instead of drawing it again");
}

void Recorder::expect_explicit_dtype(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                     bool has_real_input, Op& recorded) {
  if (has_real_input || c10::get_default_dtype_as_scalartype() == c10::kFloat) return;
  const std::size_t count = op.schema().returns().size();
  for (std::size_t i = stack.size() - count; i < stack.size(); ++i) {
    for_each_tensor(stack[i], [&](const at::Tensor& result) {
      if (!result.is_floating_point() && !result.is_complex()) return;
      const auto& schema = op.schema().arguments();
      const auto dtype = std::find_if(schema.begin(), schema.end(), [](const c10::Argument& one) {
        return one.name() == "dtype";
      });
      if (dtype == schema.end()) {
        refuse(
            "its result follows torch::set_default_dtype(), and a server has a default of its "
            "own: convert the integers to a floating-point type first, as x.to(torch::kDouble)");
      }
      Arg& argument = recorded.args[static_cast<std::size_t>(dtype - schema.begin())];
      if (argument.kind == Arg::Kind::none)
        argument = integer_argument(static_cast<std::int64_t>(result.scalar_type()));
    });
  }
}

}  // namespace cohort::function
