// SPDX-License-Identifier: Apache-2.0
#include "cohort/coordinator/internal/step_function.h"

#include <algorithm>
#include <bit>
#include <iomanip>
#include <iterator>
#include <sstream>

#include "cohort/coordinator/internal/iterator_handle.h"
#include "cohort/core/log.h"
#include "cohort/data/iterator.h"
#include "cohort/function/detail/step_scope.h"
#include "cohort/function/detail/trace_notes.h"
#include "cohort/rpc/detail/travel.h"
#include "cohort/strategy/detail/modes_scope.h"
#include "cohort/variable/detail/hyperparameter.h"
#include "cohort/variable/detail/remote_variable.h"

namespace cohort::coordinator {
namespace {

// An iterator in a signature. The iterator itself would keep its pipelines on all workers for as
// long as the signature is known.
class IteratorPattern final : public Handle {
 public:
  explicit IteratorPattern(std::shared_ptr<const ElementSpec> spec) : spec_(std::move(spec)) {}
  std::string_view handle_kind() const override { return "per-worker iterator"; }
  const ElementSpec& spec() const { return *spec_; }

 private:
  const std::shared_ptr<const ElementSpec> spec_;  // as its dataset has it
};

// Of an iterator's elements, in a call or in a signature.
const ElementSpec& spec_of(const Nest& leaf) {
  if (const auto* pattern = dynamic_cast<const IteratorPattern*>(leaf.handle().get()))
    return pattern->spec();
  return dynamic_cast<const IteratorHandle&>(*leaf.handle()).spec();
}

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

// NaN is equal to itself, and -0.0 is not 0.0: a program that has one frozen is not the other's.
bool has_same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b);
}

bool same_leaf(const Nest& pattern, const Nest& leaf) {
  if (pattern.kind() != leaf.kind()) return false;
  switch (leaf.kind()) {
    case Nest::Kind::tensor:
      return pattern.tensor().scalar_type() == leaf.tensor().scalar_type() &&
             pattern.tensor().sizes() == leaf.tensor().sizes() &&
             pattern.tensor().layout() == leaf.tensor().layout() &&
             pattern.tensor().requires_grad() == leaf.tensor().requires_grad();
    case Nest::Kind::integer:
      return pattern.integer() == leaf.integer();
    case Nest::Kind::real:
      return has_same_bits(pattern.real(), leaf.real());
    case Nest::Kind::boolean:
      return pattern.boolean() == leaf.boolean();
    case Nest::Kind::text:
      return pattern.text() == leaf.text();
    case Nest::Kind::handle: {
      const ElementSpec& a = spec_of(pattern);
      const ElementSpec& b = spec_of(leaf);
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

// A copy: before a later trace the caller may overwrite or free theirs, or give it another shape.
Nest example_of(const Nest& leaf) {
  if (leaf.kind() == Nest::Kind::handle) {
    const auto& iterator = dynamic_cast<const IteratorHandle&>(*leaf.handle());
    return std::shared_ptr<Handle>(
        std::make_shared<IteratorPattern>(iterator.datasets().shared_spec()));
  }
  if (!leaf.is_tensor()) return leaf;
  at::Tensor example = leaf.tensor().detach().clone();
  if (leaf.tensor().requires_grad()) example.requires_grad_();
  return example;
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

// Equal apart from the contents of tensors. `when`: of which trace `actual` is.
void check_same_result(const Nest& expected, const Nest& actual, const std::string& name,
                       const std::string& when) {
  Nest::check_same_structure(expected, actual, "the result of '" + name + "' " + when);
  const std::vector<Nest> before = expected.flatten();
  const std::vector<Nest> now = actual.flatten();
  for (std::size_t i = 0; i < before.size(); ++i) {
    COHORT_CHECK(same_leaf(before[i], now[i]), ErrorCode::invalid_argument,
                 "[coordinator.schedule] '", name, "' returned another number or text as part ", i,
                 " of its result ", when,
                 ": it depends on tensors or on state of the host, and every call would return "
                 "the value of the first trace; return a tensor");
  }
}

void check_same_results(const std::vector<Nest>& results, const std::string& name) {
  for (const Nest& result : results)
    check_same_result(results.front(), result, name, "on its second trace");
}

std::string text_of(const Nest& leaf) {
  std::ostringstream text;
  text << std::setprecision(17);
  if (leaf.kind() == Nest::Kind::real) {
    text << leaf.real();
  } else if (leaf.kind() == Nest::Kind::integer) {
    text << leaf.integer();
  } else if (leaf.kind() == Nest::Kind::boolean) {
    text << (leaf.boolean() ? "true" : "false");
  } else {
    text << "another " << cohort::name_of(leaf.kind());
  }
  return text.str();
}

// Variables require gradients as at the first trace: a call that waited for its program is one of
// that time.
class FlagsScope {
 public:
  explicit FlagsScope(const std::vector<std::pair<at::Tensor, bool>>& flags) {
    for (const auto& [tensor, flag] : flags) {
      if (tensor.requires_grad() == flag) continue;
      changed_.emplace_back(tensor, flag);
      tensor.requires_grad_(flag);
    }
  }
  // What their owner has set meanwhile stays.
  ~FlagsScope() {
    for (const auto& [tensor, flag] : changed_) {
      if (tensor.requires_grad() == flag) tensor.requires_grad_(!flag);
    }
  }
  FlagsScope(const FlagsScope&) = delete;
  FlagsScope& operator=(const FlagsScope&) = delete;

 private:
  std::vector<std::pair<at::Tensor, bool>> changed_;
};

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

// Batches of other lengths, and not of fewer rows: no drop_remainder makes these alike.
bool differ_behind_the_rows(const std::vector<TensorSpec>& a, const std::vector<TensorSpec>& b) {
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i) {
    const std::vector<std::int64_t>& before = *a[i].sizes;
    const std::vector<std::int64_t>& now = *b[i].sizes;
    if (before.size() != now.size() || before.empty()) continue;
    if (!std::equal(before.begin() + 1, before.end(), now.begin() + 1)) return true;
  }
  return false;
}

// " was int64[8, 5] and is now int64[8, 7]: …".
std::string difference(const std::vector<TensorSpec>& before, const std::vector<TensorSpec>& now) {
  const std::string shapes = " was " + ElementSpec::tuple(before).to_string() + " and is now " +
                             ElementSpec::tuple(now).to_string();
  return differ_behind_the_rows(before, now)
             ? shapes + ": pad to one shape, as padded_batch() does with padded_shapes"
             : shapes + ": pad to one shape, or batch with drop_remainder";
}

std::string other_shapes(const std::vector<Nest>& before, const std::vector<Nest>& now) {
  const auto tensors_of = [](const std::vector<Nest>& leaves) {
    std::vector<at::Tensor> tensors;
    for (const Nest& leaf : leaves)
      if (leaf.is_tensor()) tensors.push_back(leaf.tensor());
    return specs_of(tensors);
  };
  const std::vector<TensorSpec> was = tensors_of(before);
  const std::vector<TensorSpec> is = tensors_of(now);
  return was.size() == is.size() && !was.empty() && was != is
             ? difference(was, is)
             : " had other shapes, types or parts: pad, or batch with drop_remainder";
}

}  // namespace

CallSignature::CallSignature(std::span<const Nest> arguments, const function::TracingMode& mode)
    : mode_(mode) {
  for (const Nest& argument : arguments) {
    for (const Nest& leaf : argument.flatten()) check_leaf(leaf);
    pattern_.push_back(argument.map_leaves(example_of));
  }
}

bool CallSignature::matches(std::span<const Nest> arguments,
                            const function::TracingMode& mode) const {
  return mode_ == mode && std::equal(pattern_.begin(), pattern_.end(), arguments.begin(),
                                     arguments.end(), same_nest);
}

std::string CallSignature::difference_from(const CallSignature& earlier) const {
  for (std::size_t i = 0; i < pattern_.size() && i < earlier.pattern_.size(); ++i) {
    if (same_nest(earlier.pattern_[i], pattern_[i])) continue;
    const std::vector<Nest> now = pattern_[i].flatten();
    const std::vector<Nest> before = earlier.pattern_[i].flatten();
    const std::string argument = "argument " + std::to_string(i);
    for (std::size_t leaf = 0; leaf < now.size() && leaf < before.size(); ++leaf) {
      if (same_leaf(before[leaf], now[leaf])) continue;
      if (before[leaf].is_tensor() || before[leaf].kind() != now[leaf].kind()) break;
      return argument + " was " + text_of(before[leaf]) + " and is now " + text_of(now[leaf]) +
             ": declare it at::Tensor, so that a number becomes a tensor and its value no part of "
             "the program";
    }
    return argument + other_shapes(before, now);
  }
  return mode_ == earlier.mode_ ? "" : "grad mode, autocast or the default dtype was another";
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
      strategy_(strategy),
      small_arguments_(bind_arguments(signature_.pattern()).tensors) {
  const BoundArguments bound = bind_arguments(signature_.pattern());
  for (const Nest& resource : bound.resources) {
    resource_specs_.push_back(spec_of(resource));
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
  const std::int64_t workers = strategy_.home()->connection().num_workers();
  return {function::worker_index_tensor(pass % workers)};
}

std::string StepFunction::advice_for(const std::vector<at::Tensor>& drawn) const {
  return "the element" + difference(drawn_specs_.back(), specs_of(drawn));
}

bool StepFunction::draws_from(std::int64_t resource) const {
  return std::any_of(draws_.begin(), draws_.end(),
                     [&](const auto& draw) { return draw.resource == resource; });
}

void StepFunction::drop_last_program() {
  programs_.pop_back();
  drawn_specs_.pop_back();
  placements_.pop_back();
  publish();
}

void StepFunction::trace(const DrawFn& draw) {
  const BoundArguments bound = bind_arguments(signature_.pattern());
  const VariableTable& variables = strategy_.home()->variables();
  function::TraceOptions options;
  options.name = name();
  options.variable_of = variables.lookup();
  options.draw = draw;
  options.lists_ops = true;
  for (const Variable& variable : variables.variables())
    options.variables.push_back(variable.tensor());
  std::vector<Nest> structures;
  const StrategyScope scope = strategy_.scope();
  const function::TracingModeScope mode(signature_.mode());
  const FlagsScope flags(frozen_.flags);
  const ModesScope modes(*strategy_.home());
  const auto body = [&](const std::vector<at::Tensor>& inputs) {
    modes.restore();  // of the call before
    for (const at::Tensor& value : captured_) function::Trace::current()->capture_input(value);
    Nest structure;
    std::vector<at::Tensor> outputs = call(inputs, structure);
    structures.push_back(std::move(structure));
    return outputs;
  };
  function::Traced traced;
  try {
    traced = function::trace(bound.tensors, rotated(bound.tensors), body, options);
  } catch (const Error&) {
    check_same_results(structures, name());  // says more
    throw;
  }
  check_same_results(structures, name());
  const Nest& first = structures.front();
  if (has_structure_) {
    check_same_result(structure_, first, name(), "for another element");
  } else {  // once: channels' threads read it while later traces run
    structure_ = first;
    result_count_ = traced.example_outputs.size();
    has_structure_ = true;
  }
  take_notes(traced);
  adopt(std::move(traced));
}

// For who looks at the function later.
void StepFunction::take_notes(function::Traced& traced) const {
  function::TraceNotes& notes = *function_.state()->notes;
  notes.add(std::move(traced.listing));
  if (!traced.escaped.empty() && notes.may_warn_of_escapes()) {
    log_warn(
        "function '", name(), "' leaves a tensor outside of itself (", traced.escaped,
        "): that has the values of the trace's example, and no call changes it; return it, and "
        "fetch() the result of each call");
  }
  if (!traced.drops_gradients || !notes.may_warn_of_gradients()) return;
  log_warn("function '", name(),
           "' calls backward(), but no variable is updated with a gradient and none is returned: "
           "it trains nothing; call minimize(loss) of a cohort optimizer in its place");
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
    const auto* entry = strategy_.home()->variables().find(used.name);
    COHORT_ASSERT(entry != nullptr);
    const auto* remote = dynamic_cast<const RemoteVariable*>(entry->variable.impl().get());
    COHORT_ASSERT(remote != nullptr);
    placements.push_back({used.name, remote->placement().id, remote->placement().ps});
  }
  for (const auto& used : traced.info.variables) {
    const at::Tensor& tensor = strategy_.home()->variables().find(used.name)->variable.tensor();
    const auto is_it = [&](const auto& flag) { return flag.first.is_same(tensor); };
    if (std::none_of(frozen_.flags.begin(), frozen_.flags.end(), is_it))
      frozen_.flags.emplace_back(tensor, tensor.requires_grad());
  }
  std::move(traced.frozen.begin(), traced.frozen.end(), std::back_inserter(frozen_.tensors));
  drawn_specs_.push_back(std::move(drawn));
  programs_.push_back(std::move(traced.bytes));
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
                 std::make_shared<const std::vector<at::Tensor>>(captured_),
                 std::make_shared<const FrozenState>(frozen_)};
  const Lock lock(mutex_);
  published_ = std::move(made);
  captured_count_ = captured_.size();
  has_frozen_ = !frozen_.flags.empty() || !frozen_.tensors.empty();
}

std::shared_ptr<const rpc::FunctionBody> StepFunction::body() const {
  const Lock lock(mutex_);
  return published_.body;
}

Freshness StepFunction::freshness() const {
  if (!has_frozen_) return Freshness::current;
  std::shared_ptr<const FrozenState> frozen;
  {
    const Lock lock(mutex_);
    frozen = published_.frozen;
  }
  for (const auto& [tensor, requires_grad] : frozen->flags) {
    if (tensor.requires_grad() != requires_grad) return Freshness::other_flags;
  }
  const bool is_current =
      std::all_of(frozen->tensors.begin(), frozen->tensors.end(),
                  [](const function::FrozenTensor& one) { return one.is_current(); });
  return is_current ? Freshness::current : Freshness::stale;
}

std::shared_ptr<const std::vector<at::Tensor>> StepFunction::all_captured() const {
  const Lock lock(mutex_);
  return published_.captured;
}

std::vector<at::Tensor> StepFunction::captured(CountedUpdates& counted) const {
  if (captured_count_ == 0) return {};
  return hyperparameters_of_step(*all_captured(), counted);
}

bool StepFunction::varies_with_updates() const {
  if (captured_count_ == 0) return false;
  const auto all = all_captured();
  return std::any_of(all->begin(), all->end(), cohort::varies_with_updates);
}

std::vector<at::Tensor> StepFunction::captured_uncounted() const {
  if (captured_count_ == 0) return {};
  std::vector<at::Tensor> values;
  for (const at::Tensor& value : *all_captured()) values.push_back(hyperparameter_snapshot(value));
  return values;
}

bool StepFunction::add_captured(std::vector<at::Tensor>& captured, std::uint64_t time) const {
  if (captured.size() == captured_count_) return true;
  const std::shared_ptr<const std::vector<at::Tensor>> all = all_captured();
  for (std::size_t i = captured.size(); i < all->size(); ++i) {
    at::Tensor value = hyperparameter_snapshot((*all)[i], time);
    if (!value.defined()) return false;
    captured.push_back(std::move(value));
  }
  return true;
}

std::vector<at::Tensor> StepFunction::restored(const internal::KeptArguments& arguments) const {
  const Lock lock(mutex_);
  return arguments.restored(small_arguments_);
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
