// SPDX-License-Identifier: Apache-2.0
// The part of the recorder for events without ATen operators: draws, updates of variables, inputs.
#include <ATen/ops/_unique.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "cohort/core/computed.h"
#include "cohort/function/inspection.h"
#include "cohort/function/interpreter/effect_ops.h"
#include "cohort/function/step_scope.h"
#include "cohort/function/tracer/arguments.h"
#include "cohort/function/tracer/key.h"
#include "cohort/function/tracer/recorder.h"

namespace cohort::function {
namespace {

// A copy in row-major order, as a server will hold the tensor.
at::Tensor private_copy(const at::Tensor& tensor) {
  return tensor.detach().clone(at::MemoryFormat::Contiguous).requires_grad_(tensor.requires_grad());
}

}  // namespace

std::vector<at::Tensor> Recorder::add_arguments(const std::vector<at::Tensor>& arguments) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& argument : arguments) {
    copies.push_back(private_copy(argument));
    int id = values_.add(copies.back(), Origin::argument);
    note_content(copies.back());
    program_.inputs.push_back({id, TensorSpec::of(argument)});
  }
  arguments_ = copies;
  return copies;
}

std::vector<at::Tensor> Recorder::iterator_next(std::int64_t resource) {
  if (failure_) throw *failure_;
  Untraced untraced;
  guarded("cohort::iterator_next", [&] {
    if (!options_.draw && resource == kWorkerIndexResource)
      refuse("no worker runs this function; current_worker_index() is for scheduled ones");
    if (!options_.draw) refuse("this function has no iterators among its arguments");
  });
  std::vector<at::Tensor> fields;
  Out out{.is_list = true, .ids = {}};
  ProgramDraw draw;
  for (const at::Tensor& field : example_element(resource)) {
    fields.push_back(private_copy(field));
    draw.fields.push_back(TensorSpec::of(field));
    out.ids.push_back(values_.add(fields.back(), Origin::draw));
    note_content(fields.back());
  }
  draws_.push_back({.name = "cohort::iterator_next",
                    .args = {integer_argument(resource)},
                    .outs = {std::move(out)},
                    .flags = Op::effect});
  program_.draws.push_back(std::move(draw));
  return fields;
}

// The element of the next draw, with the values of this pass.
std::vector<at::Tensor> Recorder::example_element(std::int64_t resource) {
  const int number = draw_counts_[resource]++;
  std::vector<at::Tensor> fields = options_.draw(resource, number, pass_);
  if (change_ == Change::none || change_ == Change::rolled) return fields;
  const std::vector<at::Tensor> first = options_.draw(resource, number, 0);
  for (std::size_t i = 0; i < fields.size() && i < first.size(); ++i) {
    if (TensorSpec::of(first[i]) == TensorSpec::of(fields[i]))
      fields[i] = changed(first[i], fields[i], change_);
  }
  return fields;
}

int Recorder::variable_index(const at::Tensor& variable) {
  const TracedMemory* memory = values_.memory_of(variable);
  const TracedVariable* traced = memory == nullptr ? variable_at(variable) : nullptr;
  if (traced != nullptr) return add_variable(*traced, variable);
  if (memory == nullptr || memory->origin != Origin::variable) {
    refuse_local_variable(variable);
    refuse("the tensor to update (", TensorSpec::of(variable).to_string(),
           ") is no registered variable");
  }
  return memory->variable;
}

int Recorder::content_of(const at::Tensor& tensor) {
  int id = value_of(tensor);
  note_content_use(tensor, false, false);
  return id;
}

int Recorder::hyper_value(const at::Tensor& hyper) {
  const TracedMemory* memory = values_.memory_of(hyper);
  if (memory == nullptr || memory->origin == Origin::constant) {
    refuse(
        "a hyperparameter is a number of the host, which would be frozen; capture_input() its "
        "tensor first");
  }
  if (hyper.dim() != 0) refuse("a hyperparameter has ", hyper.dim(), " dimensions, expected 0");
  return content_of(hyper);
}

void Recorder::add_effect(std::string name, int variable, std::vector<Arg> args) {
  variables_[static_cast<std::size_t>(variable)].is_updated = true;
  program_.ops.push_back({.name = std::move(name), .args = std::move(args), .flags = Op::effect});
}

void Recorder::check_update(const at::Tensor& variable, const ProgramVariable& declared,
                            const internal::Effect& effect) {
  const at::Tensor& given = effect.tensors.at(0);
  const bool is_step = effect.kind == internal::Effect::Kind::apply;
  if (is_step && !given.defined())
    refuse("variable '", declared.name, "' has no gradient; does the loss depend on it?");
  if (given.defined() && given.sizes() == variable.sizes()) return;
  const std::string got =
      given.defined() ? TensorSpec::of(given).to_string() : "an undefined tensor";
  if (is_step) {
    refuse("the gradient ", got, " does not fit variable '", declared.name, "' ",
           declared.spec.to_string());
  }
  refuse("expected ", declared.spec.to_string(), " for variable '", declared.name, "', got ", got);
}

void Recorder::update(const at::Tensor& variable, const internal::Effect& effect,
                      std::span<const at::Tensor> hyper) {
  if (failure_) throw *failure_;
  Untraced untraced;
  const EffectOp& op = update_op(effect.kind);
  guarded(op.schema.name(), [&] {
    int index = variable_index(variable);
    if (!effect.row_ids.defined())
      check_update(variable, program_.variables[static_cast<std::size_t>(index)], effect);
    std::vector<Arg> args;
    std::size_t next_tensor = 0;
    for (const UpdateRole role : op.roles) {
      switch (role) {
        case UpdateRole::rule:
          args.push_back(text_argument(effect.rule));
          break;
        case UpdateRole::optimizer:
          args.push_back(text_argument(effect.optimizer));
          break;
        case UpdateRole::variable:
          args.push_back(integer_argument(index));
          break;
        case UpdateRole::tensor:
          args.push_back(value_argument(content_of(effect.tensors.at(next_tensor++))));
          break;
        case UpdateRole::row_ids:
          args.push_back(value_argument(content_of(effect.row_ids)));
          break;
        case UpdateRole::hyper: {
          std::vector<int> ids;
          for (const at::Tensor& one : hyper) ids.push_back(hyper_value(one));
          args.push_back(values_argument(std::move(ids)));
          break;
        }
        case UpdateRole::lazy_rows:
          if (effect.lazy_rows) args.push_back(boolean_argument(true));
          break;
        default:
          COHORT_ASSERT(false);  // of averages, which only writes into buffers become
      }
    }
    if (effect.kind == internal::Effect::Kind::assign)
      drop_writes(variables_[static_cast<std::size_t>(index)]);
    else
      send_writes(index);
    add_effect(op.schema.name(), index, std::move(args));
    note_update(index);
  });
}

// The results are those of RowGather for these keys, but for the number of rows: it differs between
// runs, and the program has the largest one, so that the gradient of the rows has one shape.
Recorder::LookedUp Recorder::look_up(
    const at::Tensor& table, const at::Tensor& keys,
    const std::function<at::Tensor(const at::Tensor&)>& example_rows) {
  if (failure_) throw *failure_;
  Untraced untraced;
  LookedUp lookup;
  guarded("cohort::gather", [&] {
    const int index = variable_index(table);
    if (variables_[static_cast<std::size_t>(index)].is_updated) {
      refuse("table '", program_.variables[static_cast<std::size_t>(index)].name,
             "' is looked up after the step has updated it, and the rows would be those before the "
             "update; look all keys up first");
    }
    const int keys_id = content_of(keys);
    const auto [used, places] =
        at::_unique(keys.reshape({-1}), /*sorted=*/true, /*return_inverse=*/true);
    const std::int64_t unused = keys.numel() - used.numel();
    const at::Tensor no_keys =
        at::full({unused}, at::Scalar(internal::kNoRow), at::TensorOptions(at::kLong));
    lookup.keys = at::cat({used, no_keys});
    lookup.places = places.view(keys.sizes()).clone();
    const at::Tensor rows = example_rows(used);
    std::vector<std::int64_t> sizes = rows.sizes().vec();
    sizes.front() = unused;
    lookup.rows = at::cat({rows, at::zeros(sizes, rows.options())});
    lookup.rows.requires_grad_(table.requires_grad());
    Out out{.is_list = true, .ids = {}};
    for (const at::Tensor& result : {lookup.rows, lookup.keys, lookup.places}) {
      out.ids.push_back(values_.add(result, Origin::draw));
      note_content(result);
    }
    program_.ops.push_back(
        {.name = "cohort::gather",
         .args = {integers_argument({index}), integers_argument({-1}), integers_argument({1}),
                  values_argument({keys_id}), integers_argument({})},
         .outs = {std::move(out)},
         .flags = Op::effect});
    lookups_.emplace(index, lookup);
  });
  return lookup;
}

std::vector<Recorder::LookedUp> Recorder::lookups_of(const at::Tensor& table) {
  const TracedMemory* const memory = values_.memory_of(table);
  std::vector<LookedUp> all;
  if (memory == nullptr || memory->origin != Origin::variable) return all;
  const auto [first, last] = lookups_.equal_range(memory->variable);
  for (auto each = first; each != last; ++each) all.push_back(each->second);
  return all;
}

// A value that no update of a variable changes.
int Recorder::own_value(const at::Tensor& tensor) {
  const int id = content_of(tensor);
  const TracedMemory* memory = values_.memory_of(tensor);
  if (memory == nullptr || memory->origin != Origin::variable) return id;
  return add_op("aten::clone", "", {value_argument(id)}, values_.add_unseen());
}

std::vector<at::Tensor> Recorder::call_host(
    std::string_view name, std::int64_t number, const std::vector<at::Tensor>& values,
    const std::vector<at::Tensor>& updated,
    const std::function<std::vector<at::Tensor>()>& example) {
  if (failure_) throw *failure_;
  Untraced untraced;
  std::vector<at::Tensor> results = example();
  // A run gets computed values, too.
  for (at::Tensor& result : results) result = computed(result);
  guarded(name, [&] {
    std::vector<int> ids;
    for (const at::Tensor& value : values) ids.push_back(own_value(value));
    std::vector<int> changed;
    for (const at::Tensor& variable : updated) changed.push_back(variable_index(variable));
    for (const int variable : changed) {
      send_writes(variable);
      variables_[static_cast<std::size_t>(variable)].is_updated = true;
    }
    Out out{.is_list = true, .ids = {}};
    for (const at::Tensor& result : results) {
      out.ids.push_back(values_.add(result, Origin::draw));
      note_content(result);
    }
    program_.ops.push_back({.name = "cohort::call",
                            .args = {text_argument(std::string(name)), integer_argument(number),
                                     values_argument(std::move(ids))},
                            .outs = {std::move(out)},
                            .flags = Op::effect});
    for (const int variable : changed) note_update(variable);
  });
  return results;
}

void Recorder::inspect(const std::string& op, std::string_view label, const at::Tensor& value) {
  if (failure_) throw *failure_;
  Untraced untraced;
  guarded(op, [&] {
    std::vector<Arg> args = {text_argument(std::string(label)), value_argument(content_of(value))};
    program_.ops.push_back({.name = op, .args = std::move(args), .flags = Op::effect});
  });
}

// The value may have changed meanwhile, so a later read of it pulls it again, as after an update.
void Recorder::wait_until_positive(const at::Tensor& variable) {
  if (failure_) throw *failure_;
  Untraced untraced;
  guarded("cohort::wait_until_positive", [&] {
    const int index = variable_index(variable);
    send_writes(index);
    program_.ops.push_back({.name = "cohort::wait_until_positive",
                            .args = {integer_argument(index)},
                            .flags = Op::effect});
    note_update(index);
  });
}

void Recorder::capture_input(const at::Tensor& value) {
  if (failure_) throw *failure_;
  guarded("capture_input", [&] {
    const TracedMemory* memory = values_.memory_of(value);
    if (memory != nullptr && memory->origin == Origin::captured_input) return;
    if (memory != nullptr) refuse("the tensor was used before it was captured; capture it first");
    if (!value.is_contiguous() || value.storage_offset() != 0)
      refuse("the tensor is part of another one's memory");
    int id = values_.add(value, Origin::captured_input);
    program_.inputs.push_back({id, TensorSpec::of(value)});
    captured_inputs_.push_back(value);
  });
}

}  // namespace cohort::function
