// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/traced_function.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/function/step_scope.h"
#include "cohort/function/tracer/trace_notes.h"

namespace cohort::function {
namespace {

// Gives variables the requires_grad flags of the first trace, because a call that waited for its
// program was made with those flags.
class FlagsScope {
 public:
  explicit FlagsScope(const std::vector<std::pair<at::Tensor, bool>>& flags) {
    for (const auto& [tensor, flag] : flags) {
      if (tensor.requires_grad() == flag) continue;
      changed_.emplace_back(tensor, flag);
      tensor.requires_grad_(flag);
    }
  }
  // A flag that its owner has changed meanwhile keeps its new value.
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

// The passes of one trace returned the same.
void check_same_results(const std::vector<ResultStructure>& results, const std::string& name) {
  for (const ResultStructure& result : results)
    results.front().check_same(result, name, "on its second trace");
}

}  // namespace

Nest result_of_registered(std::vector<at::Tensor> outputs) {
  if (outputs.size() == 1) return std::move(outputs[0]);
  Nest::Items items;
  for (at::Tensor& output : outputs) items.push_back(std::move(output));
  return outputs.empty() ? Nest() : Nest::tuple(std::move(items));
}

std::vector<at::Tensor> rotated(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> others;
  for (const at::Tensor& tensor : tensors) {
    others.push_back(tensor.dim() == 0 ? tensor.clone() : tensor.roll({1}, {0}));
  }
  return others;
}

TracedFunction::TracedFunction(Function function, CallSignature signature)
    : function_(std::move(function)), signature_(std::move(signature)) {
  for (const Nest& resource : bind_arguments(signature_.pattern()).resources) {
    const auto& pattern = dynamic_cast<const ResourcePattern&>(*resource.handle());
    field_counts_.push_back(pattern.fields().size());
  }
  publish();
}

ProgramInfo TracedFunction::trace_first(const TraceSetting& setting,
                                        const std::vector<Tensors>& elements,
                                        const std::vector<Tensors>& others) {
  return trace(setting, [&](std::int64_t resource, int, int pass) {
    return (pass == 0 ? elements : others).at(static_cast<std::size_t>(resource));
  });
}

bool TracedFunction::has_program_for(const Tensors& drawn) const {
  return std::find(drawn_specs_.begin(), drawn_specs_.end(), specs_of(drawn)) != drawn_specs_.end();
}

std::optional<ProgramInfo> TracedFunction::trace_drawn(const TraceSetting& setting,
                                                       const Tensors& drawn) {
  if (has_program_for(drawn)) return std::nullopt;
  const Tensors others = rotated(drawn);
  return trace(setting, [&](std::int64_t resource, int draw, int pass) {
    return drawn_fields(pass == 0 ? drawn : others, resource, draw);
  });
}

// The fields of draw `draw` from this resource.
TracedFunction::Tensors TracedFunction::drawn_fields(const Tensors& drawn, std::int64_t resource,
                                                     int draw) const {
  std::size_t offset = 0;
  int seen = 0;
  for (const auto& known : draws_) {
    if (known.resource == resource && seen++ == draw) break;
    offset += known.fields.size();
  }
  const std::size_t count = field_counts_.at(static_cast<std::size_t>(resource));
  COHORT_CHECK(offset + count <= drawn.size(), ErrorCode::invalid_argument, "[function.trace] '",
               name(),
               "' draws more elements for this element than for the first; draw unconditionally");
  return Tensors(drawn.begin() + static_cast<std::ptrdiff_t>(offset),
                 drawn.begin() + static_cast<std::ptrdiff_t>(offset + count));
}

std::string TracedFunction::advice_for(const Tensors& drawn) const {
  return "the element" + difference(drawn_specs_.back(), specs_of(drawn));
}

bool TracedFunction::draws_from(std::int64_t resource) const {
  return std::any_of(draws_.begin(), draws_.end(),
                     [&](const auto& draw) { return draw.resource == resource; });
}

void TracedFunction::drop_last_program() {
  programs_.pop_back();
  drawn_specs_.pop_back();
}

ProgramInfo TracedFunction::trace(const TraceSetting& setting, const DrawFn& draw) {
  const BoundArguments bound = bind_arguments(signature_.pattern());
  TraceOptions options;
  options.name = name();
  options.variable_of = setting.variable_of;
  options.variables = setting.variables;
  options.draw = [&](std::int64_t resource, int number, int pass) {
    return resource == kWorkerIndexResource ? setting.worker_index(pass)
                                            : draw(resource, number, pass);
  };
  options.lists_ops = true;
  options.runs_here = setting.runs_here;
  options.gathers_rows = !setting.runs_here;  // variables are on servers
  options.takes_rows = setting.takes_rows;
  std::vector<ResultStructure> results;
  const TracingModeScope mode(signature_.mode());
  const FlagsScope flags(frozen_.flags);
  const auto body = [&](const Tensors& inputs) {
    setting.begin_pass(inputs);
    for (const at::Tensor& value : captured_) Trace::current()->capture_input(value);
    Tensors outputs;
    ResultStructure result(call(inputs), outputs);
    for (std::size_t i = 0; i < outputs.size(); ++i) setting.check_result(outputs[i], i);
    results.push_back(std::move(result));
    return outputs;
  };
  Traced traced;
  try {
    traced = function::trace(bound.tensors, rotated(bound.tensors), body, options);
  } catch (const Error&) {
    check_same_results(results, name());  // its message says more
    throw;
  }
  check_same_results(results, name());
  if (result_) {
    result_->check_same(results.front(), name(), "for another element");
  } else {  // once: other threads read it while later traces run
    result_ = std::move(results.front());
  }
  take_notes(traced);
  return adopt(setting, std::move(traced));
}

// For those who look at the function later.
void TracedFunction::take_notes(Traced& traced) const {
  TraceNotes& notes = *function_.state()->notes;
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

// Runs the user's function on traced tensors.
Nest TracedFunction::call(const Tensors& inputs) const {
  std::size_t next_tensor = 0;
  std::int64_t next_resource = 0;
  std::vector<Nest> arguments;
  for (const Nest& argument : signature_.pattern()) {
    arguments.push_back(argument.map_leaves([&](const Nest& leaf) -> Nest {
      if (leaf.is_tensor()) return inputs.at(next_tensor++);
      if (leaf.kind() != Nest::Kind::handle) return leaf;
      return dynamic_cast<const ResourcePattern&>(*leaf.handle()).argument(next_resource++);
    }));
  }
  return function_.call(arguments);
}

ProgramInfo TracedFunction::adopt(const TraceSetting& setting, Traced traced) {
  std::vector<TensorSpec> drawn;
  for (const auto& draw : traced.info.draws)
    drawn.insert(drawn.end(), draw.fields.begin(), draw.fields.end());
  if (programs_.empty()) draws_ = traced.info.draws;
  captured_ = std::move(traced.captured_inputs);
  std::unordered_set<const c10::TensorImpl*> flagged;
  for (const auto& [tensor, flag] : frozen_.flags) flagged.insert(tensor.unsafeGetTensorImpl());
  for (const auto& used : traced.info.variables) {
    const at::Tensor tensor = setting.tensor_of(used.name);
    if (flagged.insert(tensor.unsafeGetTensorImpl()).second)
      frozen_.flags.emplace_back(tensor, tensor.requires_grad());
  }
  // Programs for other shapes hold the same tensors, which each call compares.
  std::unordered_multimap<const void*, std::size_t> known;
  for (const FrozenTensor& each : frozen_.tensors) known.emplace(each.address(), known.size());
  for (FrozenTensor& each : traced.frozen) {
    const auto [first, last] = known.equal_range(each.address());
    const bool is_known = std::any_of(
        first, last, [&](const auto& entry) { return frozen_.tensors[entry.second] == each; });
    if (!is_known) frozen_.tensors.push_back(std::move(each));
  }
  drawn_specs_.push_back(std::move(drawn));
  programs_.push_back(std::move(traced.bytes));
  publish();
  return std::move(traced.info);
}

void TracedFunction::publish() {
  Published made{std::make_shared<const Tensors>(captured_),
                 std::make_shared<const FrozenState>(frozen_)};
  const Lock lock(mutex_);
  published_ = std::move(made);
  captured_count_ = captured_.size();
  has_frozen_ = !frozen_.flags.empty() || !frozen_.tensors.empty();
}

Freshness TracedFunction::freshness() const {
  if (!has_frozen_) return Freshness::current;
  std::shared_ptr<const FrozenState> frozen;
  {
    const Lock lock(mutex_);
    frozen = published_.frozen;
  }
  for (const auto& [tensor, requires_grad] : frozen->flags) {
    if (tensor.requires_grad() != requires_grad) return Freshness::other_flags;
  }
  const bool is_current = std::all_of(frozen->tensors.begin(), frozen->tensors.end(),
                                      [](const FrozenTensor& one) { return one.is_current(); });
  return is_current ? Freshness::current : Freshness::stale;
}

std::shared_ptr<const TracedFunction::Tensors> TracedFunction::captured() const {
  const Lock lock(mutex_);
  return published_.captured;
}

std::optional<std::size_t> TracedFunction::result_count() const {
  if (!result_) return std::nullopt;
  return result_->tensor_count();
}

Nest TracedFunction::result_of(Tensors outputs) const {
  if (result_) return result_->filled(outputs);
  return result_of_registered(std::move(outputs));
}

}  // namespace cohort::function
