// SPDX-License-Identifier: Apache-2.0
// The part of the recorder for the end of a pass.
#include <algorithm>
#include <unordered_set>

#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/recorder.h"

namespace cohort::function {

// Whether backward() has left gradients, but the program has no updates, and no output or effect
// depends on a gradient.
bool Recorder::leaves_gradients() {
  std::unordered_set<int> derived;
  for (const VariableUse& use : variables_) {
    const at::Tensor& gradient = use.tensor.is_leaf() ? use.tensor.grad() : at::Tensor();
    if (gradient.defined()) derived.insert(values_.find(gradient));
  }
  if (derived.empty()) return false;
  const auto is_derived = [&](int id) { return derived.contains(id); };
  for (const Op& op : program_.ops) {
    bool is_update = (op.flags & Op::effect) != 0 && op.name != "cohort::print" &&
                     op.name != "cohort::check_finite" &&
                     op.name != "cohort::wait_until_positive" && op.name != "cohort::call";
    bool takes_one = std::any_of(op.args.begin(), op.args.end(), [&](const Arg& arg) {
      return is_derived(arg.id) || std::any_of(arg.ids.begin(), arg.ids.end(), is_derived);
    });
    if (is_update || (takes_one && (op.flags & Op::effect) != 0)) return false;
    if (!takes_one) continue;
    for (const Out& out : op.outs) derived.insert(out.ids.begin(), out.ids.end());
  }
  return std::none_of(program_.outputs.begin(), program_.outputs.end(), is_derived);
}

void Recorder::finish(const std::vector<at::Tensor>& outputs) {
  if (failure_) throw *failure_;
  Untraced untraced;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::string what = "the returned value " + std::to_string(i);
    guarded(what, [&] {
      program_.outputs.push_back(outputs[i].defined() ? content_of(outputs[i]) : -1);
    });
  }
  drops_gradients_ = leaves_gradients();
  guarded("the end of the function", [&] {
    expect_variables_kept();
    expect_buffers_without_graph();
  });
  for (std::size_t i = 0; i < variables_.size(); ++i)
    guarded("cohort::assign", [&] { send_writes(static_cast<int>(i)); });
  guarded("the end of the function", [&] {
    for (const at::Tensor& argument : arguments_) note_content_use(argument, false, false);
    for (const VariableUse& use : variables_) note_content_use(use.tensor, false, false);
    expect_random_state();
  });
  program_.ops.insert(program_.ops.begin(), draws_.begin(), draws_.end());
  program_.value_count = values_.count();
}

Program Recorder::unfinished_program() const {
  Program program = program_;
  program.ops.insert(program.ops.begin(), draws_.begin(), draws_.end());
  if (running_) program.ops.push_back(*running_);
  return program;
}

std::vector<std::optional<TensorSpec>> Recorder::specs() const {
  std::vector<std::optional<TensorSpec>> specs;
  for (int id = 0; id < values_.count(); ++id) {
    const Geometry& geometry = values_.geometry(id);
    const bool is_known = geometry.dtype != c10::ScalarType::Undefined;
    specs.push_back(is_known ? std::optional(TensorSpec{geometry.dtype, geometry.sizes})
                             : std::nullopt);
  }
  return specs;
}

ProgramInfo Recorder::info() const {
  ProgramInfo info;
  for (const ProgramInput& input : program_.inputs) info.inputs.push_back(input.spec);
  for (std::size_t i = 0; i < program_.variables.size(); ++i) {
    const ProgramVariable& variable = program_.variables[i];
    info.variables.push_back({.name = variable.name,
                              .spec = variable.spec,
                              .is_read = variable.is_read,
                              .is_updated = variables_[i].is_updated,
                              .is_handle_only = variable.is_handle_only,
                              .is_merged = variables_[i].is_merged});
  }
  for (std::size_t i = 0; i < draws_.size(); ++i) {
    info.draws.push_back({draws_[i].args.front().constant.toInt(), program_.draws[i].fields});
  }
  info.output_count = program_.outputs.size();
  info.op_count = program_.ops.size() - unused_ops_.size();
  info.is_random = program_.is_random;
  return info;
}

std::vector<at::Tensor> Recorder::detached(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& output : outputs) {
    const TracedMemory* memory = output.defined() ? values_.memory_of(output) : nullptr;
    bool is_kept = memory == nullptr || memory->origin == Origin::result;
    results.push_back(!output.defined() ? output
                      : is_kept         ? output.detach()
                                        : output.detach().clone());
  }
  return results;
}

}  // namespace cohort::function
