// SPDX-License-Identifier: Apache-2.0
// A program resolved against this process's operators: what the interpreter walks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "cohort/function/internal/interpreter/arguments.h"
#include "cohort/function/internal/interpreter/effect_ops.h"
#include "cohort/function/internal/program.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

// A value type; immutable once made.
struct PlannedOp {
  std::string name;  // "aten::add.Tensor"
  Effect effect = Effect::none;
  std::optional<c10::OperatorHandle> kernel;  // none for an effect
  std::vector<Source> sources;
  std::vector<Out> outs;
  std::vector<int> dead;  // registers nobody reads after this op
  // A result that the host owns gets memory of the run's own, because a later op writes to it.
  bool copies_results = false;
  // The host keeps what an effect gives it, and a later op writes there.
  bool copies_arguments = false;
  bool is_without_gradients = false;  // see Op::without_gradients
};

struct PlannedInput {
  int id;
  TensorSpec spec;
  bool is_copied;  // an op writes to it, and the caller's tensor is not ours to write
};

struct PlannedVariable {
  int id;
  bool is_required;     // a program that reads it cannot run without
  bool needs_stand_in;  // a handle that ops take for its shape: memory of one element stands for
                        // the table
};

struct PlannedConstant {
  int id;
  at::Tensor value;
  bool is_copied;
};

struct PlannedOutput {
  int id;             // -1: undefined
  bool is_from_host;  // may be memory of a drawn element or gathered rows
};

struct Plan {
  ProgramInfo info;
  std::string identity;
  int value_count = 0;
  bool has_generator = false;
  std::vector<PlannedInput> inputs;
  std::vector<PlannedVariable> variables;  // in info's order
  std::vector<PlannedConstant> constants;
  std::vector<PlannedOp> ops;
  std::vector<PlannedOutput> outputs;
};

// Throws unimplemented for what this process cannot run, data_loss for what no process can.
Plan make_plan(Program program, std::string identity);

}  // namespace cohort::function
