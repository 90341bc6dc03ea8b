// SPDX-License-Identifier: Apache-2.0
// The cohort:: operators, which call the EffectHandler instead of a kernel (print and check_finite
// need neither).
#pragma once

#include <ATen/core/function_schema.h>

#include <string_view>
#include <vector>

#include "cohort/core/effect_handler.h"

namespace cohort::function {

enum class EffectOpKind : std::uint8_t {
  iterator_next,
  update,
  gather,
  next_segment,
  wait_until_positive,
  call,
  print,
  check_finite
};

// Where an argument of an update goes; the names of the arguments say it.
enum class UpdateRole : std::uint8_t {
  rule,
  optimizer,
  variable,
  tensor,
  row_ids,
  hyper,
  lazy_rows,
  momentum,
  old,         // of an average: the value before
  is_variance  // of an average
};

struct EffectOp {
  EffectOpKind kind;
  c10::FunctionSchema schema;
  // Whether the host may keep the tensors that this operator passes to it.
  bool keeps_arguments = false;
  // The kind, for the operator of an update.
  internal::Effect::Kind update = {};
  std::vector<UpdateRole> roles = {};  // of the schema's arguments
};

// One update of a running average.
struct AverageStep {
  at::Tensor old;
  at::Tensor value;
  double momentum = 0;
  bool is_variance = false;
};
// The statistic that the average was moved towards. Computed in float64, where rounding is
// negligible; a variance is clamped, because it might still be just below zero.
at::Tensor statistic_of(const AverageStep& step);

// The operator that records such an update.
const EffectOp& update_op(internal::Effect::Kind kind);

// nullptr: no such operator. `name` with its namespace, as "cohort::apply".
const EffectOp* find_effect_op(std::string_view name);

}  // namespace cohort::function
