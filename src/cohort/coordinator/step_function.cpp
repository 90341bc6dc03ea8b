// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/step_function.h"

#include <algorithm>

#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/core/log.h"
#include "cohort/data/iterator.h"
#include "cohort/function/worker_index.h"
#include "cohort/rpc/travel.h"
#include "cohort/variable/hyperparameter.h"
#include "cohort/variable/remote_variable.h"

namespace cohort::coordinator {
namespace {

// More traces than this of one function point at a signature that changes all the time.
constexpr std::size_t kTracesBeforeWarning = 5;

void check_leaf(const Nest& leaf) {
  if (leaf.kind() != Nest::Kind::handle) return;
  COHORT_CHECK(
      dynamic_cast<const IteratorHandle*>(leaf.handle().get()) != nullptr,
      ErrorCode::invalid_argument,
      "[coordinator.schedule] expected tensors, host values and per-worker iterators as arguments, "
      "got a ",
      leaf.handle()->handle_kind(),
      "; fetch() a remote value first, and pass create_per_worker_dataset(…).iterator() for data");
}

bool same_leaf(const Nest& pattern, const Nest& leaf) {
  if (pattern.kind() != leaf.kind()) return false;
  switch (leaf.kind()) {
    case Nest::Kind::tensor:
      return pattern.tensor().scalar_type() == leaf.tensor().scalar_type() &&
             pattern.tensor().sizes() == leaf.tensor().sizes();
    case Nest::Kind::integer:
      return pattern.integer() == leaf.integer();
    case Nest::Kind::real:
      return pattern.real() == leaf.real();
    case Nest::Kind::boolean:
      return pattern.boolean() == leaf.boolean();
    case Nest::Kind::text:
      return pattern.text() == leaf.text();
    case Nest::Kind::handle: {
      check_leaf(leaf);
      const auto& a = dynamic_cast<const IteratorHandle&>(*pattern.handle()).spec();
      const auto& b = dynamic_cast<const IteratorHandle&>(*leaf.handle()).spec();
      return &a == &b ||
             (a.fields == b.fields && a.structure.structure() == b.structure.structure());
    }
    default:
      return true;
  }
}

bool same_nest(const Nest& pattern, const Nest& nest) {
  if (pattern.kind() != nest.kind()) return false;
  if (nest.is_leaf()) return same_leaf(pattern, nest);
  if (nest.kind() == Nest::Kind::map) {
    return std::equal(pattern.entries().begin(), pattern.entries().end(), nest.entries().begin(),
                      nest.entries().end(), [](const auto& a, const auto& b) {
                        return a.first == b.first && same_nest(a.second, b.second);
                      });
  }
  return std::equal(pattern.items().begin(), pattern.items().end(), nest.items().begin(),
                    nest.items().end(), same_nest);
}

// As flatten(), without copies.
void bind(const Nest& nest, BoundArguments& bound) {
  switch (nest.kind()) {
    case Nest::Kind::tensor:
      return bound.tensors.push_back(nest.tensor());
    case Nest::Kind::handle:
      return bound.resources.push_back(nest);
    case Nest::Kind::map:
      for (const auto& [key, value] : nest.entries()) bind(value, bound);
      return;
    case Nest::Kind::list:
    case Nest::Kind::tuple:
      for (const Nest& item : nest.items()) bind(item, bound);
      return;
    default:
      return;
  }
}

// The part of a result's structure with the outputs for their numbers.
Nest filled(const Nest& part, const std::vector<at::Tensor>& outputs) {
  if (part.is_leaf()) return part;
  if (part.kind() == Nest::Kind::map) {
    const auto number = part.entries().find("");
    if (number != part.entries().end() && part.entries().size() == 1) {
      return outputs.at(static_cast<std::size_t>(number->second.integer()));
    }
    Nest::Map entries;
    for (const auto& [key, value] : part.entries()) entries.emplace(key, filled(value, outputs));
    return Nest::map(std::move(entries));
  }
  Nest::Items items;
  for (const Nest& item : part.items()) items.push_back(filled(item, outputs));
  return part.kind() == Nest::Kind::list ? Nest::list(std::move(items))
                                         : Nest::tuple(std::move(items));
}

// Stands for a worker's iterator while a step is traced.
class TracedElements final : public ElementSource {
 public:
  TracedElements(std::int64_t resource, ElementSpec spec)
      : resource_(resource), spec_(std::move(spec)) {}
  const ElementSpec& spec() const override { return spec_; }
  bool next(Fields& fields) override {
    function::Trace* trace = function::Trace::current();
    COHORT_CHECK(trace != nullptr, ErrorCode::failed_precondition,
                 "[coordinator.iterator] a worker's iterator can be read inside the scheduled "
                 "function only");
    fields = trace->iterator_next(resource_);
    return true;
  }

 private:
  const std::int64_t resource_;
  const ElementSpec spec_;
};

std::vector<TensorSpec> specs_of(const std::vector<at::Tensor>& tensors) {
  std::vector<TensorSpec> specs;
  for (const at::Tensor& tensor : tensors) specs.push_back(TensorSpec::of(tensor));
  return specs;
}

}  // namespace

CallSignature::CallSignature(std::span<const Nest> arguments, const function::TracingMode& mode)
    : mode_(mode) {
  for (const Nest& argument : arguments) {
    for (const Nest& leaf : argument.flatten()) check_leaf(leaf);
    pattern_.push_back(argument);
  }
}

bool CallSignature::matches(std::span<const Nest> arguments,
                            const function::TracingMode& mode) const {
  return mode_ == mode && std::equal(pattern_.begin(), pattern_.end(), arguments.begin(),
                                     arguments.end(), same_nest);
}

BoundArguments bind_arguments(std::span<const Nest> arguments) {
  BoundArguments bound;
  for (const Nest& argument : arguments) bind(argument, bound);
  return bound;
}

std::vector<at::Tensor> rotated(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    others.push_back(tensor.dim() == 0 ? tensor.clone() : tensor.roll({1}, {0}));
  }
  return others;
}

StepFunction::StepFunction(std::uint32_t id, Function function, CallSignature signature,
                           ParameterServerStrategy& strategy)
    : id_(id),
      function_(std::move(function)),
      signature_(std::move(signature)),
      strategy_(strategy) {
  const BoundArguments bound = bind_arguments(signature_.pattern());
  argument_count_ = bound.tensors.size();
  for (const Nest& resource : bound.resources) {
    resource_specs_.push_back(dynamic_cast<const IteratorHandle&>(*resource.handle()).spec());
  }
  publish();
}

void StepFunction::trace_first(const std::vector<Fields>& elements,
                               const std::vector<Fields>& others) {
  trace([&](std::int64_t resource, int, int pass) {
    if (resource == function::kWorkerIndexResource) return example_worker_index(pass);
    return (pass == 0 ? elements : others).at(static_cast<std::size_t>(resource));
  });
}

bool StepFunction::trace_drawn(const std::vector<at::Tensor>& drawn) {
  const std::vector<TensorSpec> specs = specs_of(drawn);
  if (std::find(drawn_specs_.begin(), drawn_specs_.end(), specs) != drawn_specs_.end())
    return false;
  const std::vector<at::Tensor> others = rotated(drawn);
  trace([&](std::int64_t resource, int draw, int pass) {
    if (resource == function::kWorkerIndexResource) return example_worker_index(pass);
    std::size_t offset = 0;
    int seen = 0;
    for (const auto& known : draws_) {
      if (known.resource == resource && seen++ == draw) break;
      offset += known.fields.size();
    }
    const auto& from = pass == 0 ? drawn : others;
    const std::size_t count = resource_specs_.at(static_cast<std::size_t>(resource)).fields.size();
    COHORT_CHECK(offset + count <= from.size(), ErrorCode::invalid_argument,
                 "[coordinator.trace] '", name(),
                 "' draws more elements for this element than for the first; draw unconditionally");
    return std::vector<at::Tensor>(from.begin() + static_cast<std::ptrdiff_t>(offset),
                                   from.begin() + static_cast<std::ptrdiff_t>(offset + count));
  });
  return true;
}

// Another one in each pass, where there are two workers.
Fields StepFunction::example_worker_index(int pass) const {
  const std::int64_t workers = strategy_.connection().num_workers();
  return {function::worker_index_tensor(pass % workers)};
}

void StepFunction::drop_last_program() {
  programs_.pop_back();
  drawn_specs_.pop_back();
  placements_.pop_back();
  publish();
}

void StepFunction::trace(const DrawFn& draw) {
  const BoundArguments bound = bind_arguments(signature_.pattern());
  const VariableTable& variables = strategy_.variables();
  function::TraceOptions options;
  options.name = name();
  options.variable_of = variables.lookup();
  options.draw = draw;
  Nest first;
  bool is_first = true;
  const Scope scope = strategy_.scope();
  const function::TracingModeScope mode(signature_.mode());
  function::Traced traced = function::trace(
      bound.tensors, rotated(bound.tensors),
      [&](const std::vector<at::Tensor>& inputs) {
        for (const at::Tensor& value : captured_) function::Trace::current()->capture_input(value);
        Nest structure;
        std::vector<at::Tensor> outputs = call(inputs, structure);
        if (!is_first)
          Nest::check_same_structure(first, structure,
                                     "the result of '" + name() + "' on its second trace");
        if (is_first) first = structure;
        is_first = false;
        return outputs;
      },
      options);
  if (has_structure_) {
    Nest::check_same_structure(structure_, first,
                               "the result of '" + name() + "' for another element");
  } else {  // once: channels' threads read it while later traces run
    structure_ = first;
    result_count_ = traced.example_outputs.size();
    has_structure_ = true;
  }
  adopt(std::move(traced));
}

// Runs the user's function on traced tensors; `structure` becomes its result with tensors replaced
// by their numbers.
std::vector<at::Tensor> StepFunction::call(const std::vector<at::Tensor>& inputs,
                                           Nest& structure) const {
  std::size_t next_tensor = 0;
  std::int64_t next_resource = 0;
  std::vector<Nest> arguments;
  for (const Nest& argument : signature_.pattern()) {
    arguments.push_back(argument.map_leaves([&](const Nest& leaf) -> Nest {
      if (leaf.is_tensor()) return inputs.at(next_tensor++);
      if (leaf.kind() != Nest::Kind::handle) return leaf;
      const std::int64_t resource = next_resource++;
      return std::shared_ptr<Handle>(std::make_shared<Iterator>(std::make_unique<TracedElements>(
          resource, resource_specs_[static_cast<std::size_t>(resource)])));
    }));
  }
  std::vector<at::Tensor> outputs;
  structure = function_.call(arguments).map_leaves([&](const Nest& leaf) -> Nest {
    if (!leaf.is_tensor()) return leaf;
    const std::string obstacle = rpc::obstacle_to_travel(leaf.tensor());
    COHORT_CHECK(obstacle.empty(), ErrorCode::invalid_argument,
                 "[coordinator.schedule] expected dense CPU tensors as the result of '", name(),
                 "', got ", obstacle, " (tensor ", outputs.size(),
                 "); return it dense, or leave it out");
    outputs.push_back(leaf.tensor());
    return Nest::map({{"", static_cast<std::int64_t>(outputs.size() - 1)}});
  });
  return outputs;
}

void StepFunction::adopt(function::Traced traced) {
  std::vector<TensorSpec> drawn;
  for (const auto& draw : traced.info.draws)
    drawn.insert(drawn.end(), draw.fields.begin(), draw.fields.end());
  if (programs_.empty()) draws_ = traced.info.draws;
  captured_ = std::move(traced.captured_inputs);
  std::vector<rpc::FunctionBody::Placement>& placements = placements_.emplace_back();
  for (const auto& used : traced.info.variables) {
    const auto* entry = strategy_.variables().find(used.name);
    COHORT_ASSERT(entry != nullptr);
    const auto* remote = dynamic_cast<const RemoteVariable*>(entry->variable.impl().get());
    COHORT_ASSERT(remote != nullptr);
    placements.push_back({used.name, remote->placement().id, remote->placement().ps});
  }
  drawn_specs_.push_back(std::move(drawn));
  programs_.push_back(std::move(traced.bytes));
  if (programs_.size() == kTracesBeforeWarning) {
    log_warn("function '", name(), "' was traced ", programs_.size(),
             " times, each for elements of other shapes; batch with drop_remainder, or pad, to "
             "save time");
  }
  publish();
}

void StepFunction::publish() {
  rpc::FunctionBody body{.id = id_,
                         .name = name(),
                         .registered_name = function_.state()->registered_name,
                         .programs = programs_};
  for (const auto& placements : placements_)
    body.placements.insert(body.placements.end(), placements.begin(), placements.end());
  Published made{std::make_shared<const rpc::FunctionBody>(std::move(body)),
                 std::make_shared<const std::vector<at::Tensor>>(captured_)};
  const Lock lock(mutex_);
  published_ = std::move(made);
}

std::shared_ptr<const rpc::FunctionBody> StepFunction::body() const {
  const Lock lock(mutex_);
  return published_.body;
}

void StepFunction::complete_inputs(std::vector<at::Tensor>& inputs) const {
  std::shared_ptr<const std::vector<at::Tensor>> captured;
  {
    const Lock lock(mutex_);
    captured = published_.captured;
  }
  for (std::size_t i = inputs.size() - argument_count_; i < captured->size(); ++i)
    inputs.push_back(hyperparameter_snapshot((*captured)[i]));
}

Nest StepFunction::result_of(std::vector<at::Tensor> outputs) const {
  if (!has_structure_) {  // registered: what came, a single tensor alone
    if (outputs.size() == 1) return std::move(outputs[0]);
    Nest::Items items;
    for (at::Tensor& output : outputs) items.push_back(std::move(output));
    return outputs.empty() ? Nest() : Nest::tuple(std::move(items));
  }
  COHORT_CHECK(outputs.size() == result_count_, ErrorCode::data_loss,
               "[coordinator.fetch] expected ", result_count_, " tensors as the result of '",
               name(), "', got ", outputs.size(),
               " from its worker; run the same release of Cohort on every task");
  return filled(structure_, outputs);
}

}  // namespace cohort::coordinator
