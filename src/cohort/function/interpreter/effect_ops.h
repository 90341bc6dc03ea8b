// SPDX-License-Identifier: Apache-2.0
// The cohort:: operators, which call the EffectHandler instead of a kernel (print and check_finite
// need neither).
#pragma once

#include <ATen/core/function_schema.h>

#include <string_view>

namespace cohort::function {

enum class Effect : std::uint8_t {
  none,  // an ATen operator
  iterator_next,
  apply,
  assign,
  assign_add,
  assign_sub,
  gather,
  scatter_add,
  next_segment,
  merge_average,
  call,
  print,
  check_finite
};

// Whether the host may keep the tensors that this effect passes to it, except hyperparameters.
bool keeps_arguments(Effect effect);

struct EffectOp {
  Effect effect;
  c10::FunctionSchema schema;
};

// nullptr: no such operator. `name` with its namespace, as "cohort::apply".
const EffectOp* find_effect_op(std::string_view name);

}  // namespace cohort::function
