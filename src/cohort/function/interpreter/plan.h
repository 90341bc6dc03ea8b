// SPDX-License-Identifier: Apache-2.0
// A program resolved against this process's operators: what the interpreter walks.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string>
#include <vector>

#include "cohort/function/interpreter/arguments.h"
#include "cohort/function/interpreter/effect_ops.h"
#include "cohort/function/prepared_program.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

// A value type; immutable once made.
struct PlannedOp {
  std::string name;                           // "aten::add.Tensor"
  const EffectOp* effect = nullptr;           // nullptr: an ATen operator
  std::optional<c10::OperatorHandle> kernel;  // none for an effect
  std::vector<Source> sources;
  std::vector<Out> outs;
  std::vector<int> dead;  // registers that no later op reads
  // The results belong to the host, and a later op writes to one of them.
  bool copies_results = false;
  // The host keeps the arguments of the effect, and a later op writes to one of them.
  bool copies_arguments = false;
  bool is_without_gradients = false;  // see Op::without_gradients
};

struct PlannedInput {
  int id;
  bool is_copied;  // an op writes to it, and the caller's tensor must not change
};

struct PlannedVariable {
  int id;
  bool is_required;     // the program reads its value and cannot run without it
  bool needs_stand_in;  // ops use the shape of this handle: a tensor with the memory of one element
                        // replaces the table
};

struct PlannedConstant {
  int id;
  at::Tensor value;
  bool is_copied;
};

struct PlannedOutput {
  int id;             // -1: undefined
  bool is_from_host;  // may share memory with a tensor of the host (an element, gathered rows)
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

// Throws unimplemented for a program that this process cannot run, data_loss for one that no
// process can run.
Plan make_plan(Program program, std::string identity);

}  // namespace cohort::function
