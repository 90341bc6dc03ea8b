// SPDX-License-Identifier: Apache-2.0
// The op list in memory: the tracer makes it, the wire format carries it, the interpreter runs it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/core/tensor_spec.h"

namespace cohort::function {

// One argument of an op. A value is a number in the program's value table; everything else is
// stored here.
struct Arg {
  enum class Kind : std::uint8_t {
    none,
    value,
    values,
    integer,
    real,
    boolean_false,
    boolean_true,
    complex,
    text,
    device,
    integers,
    reals,
    booleans,
    scalars
  };
  Kind kind = Kind::none;
  int id = -1;                // value
  std::vector<int> ids = {};  // values; -1 where absent
  c10::IValue constant = {};  // everything else
};

// Visits the values that the argument names.
template <class Visit>
void for_each_value(const Arg& arg, const Visit& visit) {
  if (arg.kind == Arg::Kind::value) visit(arg.id);
  for (const int id : arg.ids) {
    if (id != -1) visit(id);
  }
}

// One entry per schema return: a tensor or a list of tensors; -1 where undefined.
struct Out {
  bool is_list = false;
  std::vector<int> ids;

  bool operator==(const Out&) const = default;
};

struct Op {
  // without_gradients: it was traced with gradients off, on which some kernels depend (oneDNN's
  // LSTM then rounds differently).
  enum Flag : std::uint8_t { writes = 1, random = 2, effect = 4, without_gradients = 8 };
  std::string name = {};      // "aten::mm", "cohort::apply"
  std::string overload = {};  // "", "Tensor", …
  std::vector<Arg> args = {};
  std::vector<Out> outs = {};
  std::uint8_t flags = 0;
};

struct ProgramInput {
  int id;
  TensorSpec spec;
};

struct ProgramVariable {
  int id;
  std::string name;
  TensorSpec spec;
  bool is_read = true;  // its value is needed to run (an update alone needs none)
  // A table whose rows are gathered. One without rows in `spec` has rows by key.
  bool is_handle_only = false;
};

struct ProgramConstant {
  int id;
  at::Tensor value;
  bool is_wrapped_number = false;
};

// The specs an iterator_next op was traced with. Draw i belongs to the i-th iterator_next op, whose
// outputs are its fields.
struct ProgramDraw {
  std::vector<TensorSpec> fields;
};

// cohort:: ops, in the order of EffectHandler:
//   iterator_next(int resource) -> Tensor[]            first in the list, one per draw
//   apply(str rule, str optimizer, int variable, Tensor gradient, Tensor[] hyper) -> ()
//   assign | assign_add | assign_sub(int variable, Tensor value) -> ()
//   apply_rows(str rule, str optimizer, int variable, Tensor ids, Tensor rows, Tensor[] hyper)
//       -> ()    an id of internal::kNoRow stands for no row
//   gather(int[] tables, int[] paddings, int[] counts, Tensor[] ids, int[] variables) -> Tensor[]
//   scatter_add(int variable, Tensor ids, Tensor rows) -> ()
//   next_segment(int[] variables) -> ()                these variables' values change here
//   wait_until_positive(int variable) -> ()
//   merge_average(int variable, Tensor value, Tensor old, float momentum, bool is_variance) -> ()
//   call(str name, int number, Tensor[] values) -> Tensor[]    of the process that has traced it
// and those that need no host (inspection.h):
//   print | check_finite(str label, Tensor value) -> ()
// `variable` indexes `variables`, `resource` the function's resource arguments, or it is
// kWorkerIndexResource.
struct Program {
  std::vector<ProgramInput> inputs;
  std::vector<ProgramVariable> variables;
  std::vector<ProgramDraw> draws;
  std::vector<ProgramConstant> constants;
  std::vector<Op> ops;
  std::vector<int> outputs;  // -1: undefined
  int value_count = 0;
  bool is_random = false;
  std::string producer;  // LibTorch version it was traced with; empty: this process's
};

}  // namespace cohort::function
