// SPDX-License-Identifier: Apache-2.0
// The part of the recorder that keeps reads, in-place writes and updates of one variable in order:
// a variable's register does not change when an effect updates the variable on its server.

#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/recorder.h"

namespace cohort::function {

Recorder::VariableUse* Recorder::use_of(const at::Tensor& tensor) {
  const TracedMemory* memory = values_.memory_of(tensor);
  if (memory == nullptr || memory->origin != Origin::variable) return nullptr;
  return &variables_[static_cast<std::size_t>(memory->variable)];
}

// Called before an op uses `tensor`. If an effect has updated the variable that owns the memory,
// the variable must be pulled again: by the current segment if the update was in an earlier one,
// else by a new segment.
void Recorder::renew(const at::Tensor& tensor) {
  VariableUse* use = use_of(tensor);
  if (use == nullptr || use->updated_in < 0 || use->traced->is_handle_only) return;
  if (use->updated_in == segment()) {
    segments_.push_back({program_.ops.size(), {}});
    program_.ops.push_back({.name = "cohort::next_segment", .flags = Op::effect});
  }
  segments_.back().variables.push_back(use - variables_.data());
  use->updated_in = -1;
  use->is_pulled_again = true;
}

void Recorder::note_update(int variable) {
  VariableUse& use = variables_[static_cast<std::size_t>(variable)];
  use.updated_in = segment();
  // As an eager update does, so that autograd refuses a backward pass that needs the old value.
  use.tensor.unsafeGetTensorImpl()->bump_version();
}

void Recorder::note_in_place(VariableUse& use, const at::Tensor& tensor, BufferWrite write) {
  using Kind = BufferWrite::Kind;
  Writes& writes = use.writes;
  const ProgramVariable& variable =
      program_.variables[static_cast<std::size_t>(&use - variables_.data())];
  const bool is_whole = Geometry::of(tensor) == values_.geometry(variable.id);
  if (write.kind == Kind::average && !is_whole) write.kind = Kind::any;
  if (!writes.is_made) {
    writes = {.is_made = true, .joined = write};
    if (write.kind == Kind::any) return;
    writes.old = add_op("aten::clone", "", {value_argument(variable.id)}, values_.add_unseen());
    writes.old_op = program_.ops.size() - 1;
    return;
  }
  BufferWrite& joined = writes.joined;
  if (joined.kind != write.kind || joined.is_variance != write.is_variance) {
    joined.kind = Kind::any;
  } else if (joined.kind == Kind::average) {
    joined.momentum = 1 - (1 - joined.momentum) * (1 - write.momentum);
  }
}

// Turns the in-place writes into an effect.
void Recorder::send_writes(int variable) {
  using Kind = BufferWrite::Kind;
  VariableUse& use = variables_[static_cast<std::size_t>(variable)];
  const Writes writes = use.writes;
  if (!writes.is_made) return;
  const int now = program_.variables[static_cast<std::size_t>(variable)].id;
  const Arg index = integer_argument(variable);
  if (writes.joined.kind == Kind::any) {
    drop_writes(use);
    return add_effect("cohort::assign", variable, {index, value_argument(now)});
  }
  if (writes.joined.kind == Kind::average && writes.joined.momentum == 0) return drop_writes(use);
  use.writes = {};
  if (writes.joined.kind == Kind::sum) {
    const int difference =
        add_op("aten::sub", "Tensor", {value_argument(now), value_argument(writes.old)},
               values_.add_unseen());
    return add_effect("cohort::assign_add", variable, {index, value_argument(difference)});
  }
  use.is_merged = true;
  add_effect("cohort::merge_average", variable,
             {index, value_argument(now), value_argument(writes.old),
              real_argument(writes.joined.momentum), boolean_argument(writes.joined.is_variance)});
}

void Recorder::drop_writes(VariableUse& use) {
  if (use.writes.old >= 0) unused_ops_.push_back(use.writes.old_op);
  use.writes = {};
}

Program Recorder::completed_program() const {
  Program program = program_;
  const auto op_at = [&](std::size_t number) {
    return program.ops.begin() + static_cast<std::ptrdiff_t>(draws_.size() + number);
  };
  for (const Segment& segment : segments_)
    op_at(segment.op)->args = {integers_argument(segment.variables)};
  for (const std::size_t number : unused_ops_) op_at(number)->name.clear();
  std::erase_if(program.ops, [](const Op& op) { return op.name.empty(); });
  return program;
}

}  // namespace cohort::function
