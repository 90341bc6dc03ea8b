// SPDX-License-Identifier: Apache-2.0
// Steps that create, read and assign variables.
#include <ATen/ops/rand.h>

#include <algorithm>
#include <array>

#include "cohort/core/error.h"
#include "cohort/function/trace.h"
#include "cohort/strategy/strategy_extended.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_tensors.h"

namespace cohort::conformance::strategy {
namespace {

// --- creation -----------------------------------------------------------------------------------

template <class Enum>
using EnumNames = std::array<std::pair<const char*, Enum>, 4>;

constexpr EnumNames<VariableSynchronization> kSynchronizations = {
    {{"AUTO", VariableSynchronization::automatic},
     {"NONE", VariableSynchronization::none},
     {"ON_WRITE", VariableSynchronization::on_write},
     {"ON_READ", VariableSynchronization::on_read}}};
constexpr EnumNames<VariableAggregation> kAggregations = {
    {{"NONE", VariableAggregation::none},
     {"SUM", VariableAggregation::sum},
     {"MEAN", VariableAggregation::mean},
     {"ONLY_FIRST_REPLICA", VariableAggregation::only_first_replica}}};

template <class Enum>
Enum enum_of(const EnumNames<Enum>& names, const std::string& text) {
  for (const auto& [name, value] : names) {
    if (name == text) return value;
  }
  refuse_type("the enumerator '" + text + "'");
}

template <class Enum>
const char* text_of_enum(const EnumNames<Enum>& names, Enum value) {
  for (const auto& [name, known] : names) {
    if (known == value) return name;
  }
  return "unknown";
}

VariableOptions variable_options_in(const Step& step) {
  VariableOptions options;
  options.synchronization = enum_of(kSynchronizations, step.text_or("sync", "AUTO"));
  options.aggregation = enum_of(kAggregations, step.text_or("agg", "NONE"));
  if (step.has("trainable")) options.is_trainable = step.json["trainable"].get<bool>();
  return options;
}

at::Tensor initial_value(const Step& step, const Json& init) {
  if (init.is_object() && init.contains("random")) {
    const Json& random = init["random"];
    return at::rand(member(random, "s").get<std::vector<std::int64_t>>(),
                    scalar_type_of(member_or<std::string>(random, "t", "f32")));
  }
  if (init.is_object() && init.contains("fn")) return initial_value(step, init["fn"]);
  if (init.is_object() && init.contains("part_fn")) {
    if (member_or(init, "strict", false)) refuse_type("an initializer of parts");
    return initial_value(step, init["part_fn"]);
  }
  const Value value = evaluate(step.test, step.frame, init);
  at::Tensor tensor = tensor_from(step.test, value);
  if (!step.has("dtype")) return tensor;
  const at::ScalarType dtype = scalar_type_of(step.text("dtype"));
  // TensorFlow converts constants, but no tensors.
  COHORT_CHECK(!value.is_tensor() || tensor.scalar_type() == dtype, ErrorCode::invalid_argument,
               "[conformance] expected an initial value of dtype ", step.text("dtype"));
  return tensor.to(dtype);
}

std::string name_in(const Step& step) {
  const Value name = step.value("name");
  return name.is_null() ? "Variable" : name.leaf.text();
}

// A callable that also makes a part, which needs a shape and a dtype. A strict one makes no whole.
Variable created_by_parts(const Step& step, const VariableOptions& options) {
  const Json& init = member(step.json, "init");
  const at::Tensor all = tensor_from(step.test, evaluate(step.test, step.frame, init["part_fn"]));
  const bool is_strict = member_or(init, "strict", false);
  const auto part = [=](const TensorSpec& whole, RowRange rows) {
    const bool is_whole = rows.end - rows.begin == whole.sizes->front();
    COHORT_CHECK(!is_strict || !is_whole, ErrorCode::invalid_argument,
                 "[conformance] expected to make a part of the value, got a call for all of it");
    return all.narrow(0, rows.begin, rows.end - rows.begin);
  };
  const TensorSpec spec{scalar_type_of(step.text("dtype")),
                        step.json["shape"].get<std::vector<std::int64_t>>()};
  const auto make = [&](Strategy& strategy, const std::string& name) {
    return strategy.variable(name, spec, Initializer::function(part), options);
  };
  return step.test.create_variable(name_in(step), options, make);
}

Value create(const Step& step) {
  const std::string name = name_in(step);
  const VariableOptions options = variable_options_in(step);
  const Json& init = member(step.json, "init");
  const bool has_parts = init.is_object() && init.contains("part_fn") && step.has("dtype") &&
                         step.has("shape") && has_strategy();
  if (has_parts) return step.test.value_of(created_by_parts(step, options));
  const at::Tensor value = initial_value(step, member(step.json, "init"));
  if (step.has("shape")) {
    COHORT_CHECK(value.sizes() == step.json["shape"].get<std::vector<std::int64_t>>(),
                 ErrorCode::invalid_argument, "[conformance] expected an initial value of shape ",
                 step.json["shape"].dump());
  }
  Value variable = step.test.value_of(step.test.create_variable(name, value, options));
  if (member_or(step.json, "global", false)) {
    step.frame.top().bind(step.text_or("as", name.c_str()), variable);
  }
  return variable;
}

// --- queries ------------------------------------------------------------------------------------

// Which class TensorFlow has for the variables of a strategy: with its own component for each
// replica, or with a wrapper that aggregates what several replicas assign.
bool is_of_distributed_class(const Strategy& strategy) {
  return dynamic_cast<const MirroredStrategy*>(&strategy) != nullptr ||
         dynamic_cast<const MultiWorkerMirroredStrategy*>(&strategy) != nullptr;
}
bool is_of_wrapper_class(const Strategy& strategy) {
  return dynamic_cast<const CentralStorageStrategy*>(&strategy) != nullptr &&
         strategy.num_replicas_in_sync() > 1;
}

// In TensorFlow integers are trainable too, unless the program says no, and never get a gradient.
bool is_trainable_in_tensorflow(const Variable& variable, const VariableOptions& options) {
  const at::ScalarType dtype = variable.spec().dtype;
  const bool has_gradient = dtype != kString && at::isFloatingType(dtype);
  if (has_gradient || options.is_trainable) return variable.is_trainable();
  return options.synchronization != VariableSynchronization::on_read;
}

Value describe(const Step& step) {
  const Variable variable = step.variable();
  const Strategy& strategy = step.test.strategy_of(variable);
  const std::vector<Variable> components = step.test.components_of(variable);
  // Variables outside of strategies have no such properties in C++.
  const bool is_local = &strategy == &default_strategy();
  const VariableOptions options = step.test.options_of(variable);
  const std::string name = step.test.given_name_of(variable);
  if (!variable.impl()->shards().empty()) {
    return Value::of_json({{"trainable", is_trainable_in_tensorflow(variable, options)},
                           {"dtype", short_name_of(variable.spec().dtype)},
                           {"shape", variable.spec().sizes.value()},
                           {"name", name},
                           {"sharded", true},
                           {"components", components.size()}});
  }
  Json info = {
      {"trainable", is_trainable_in_tensorflow(variable, options)},
      {"dtype", short_name_of(variable.spec().dtype)},
      {"shape", variable.spec().sizes.value()},
      {"name", name},
      {"sync", text_of_enum(kSynchronizations,
                            is_local ? options.synchronization : variable.synchronization())},
      {"agg", text_of_enum(kAggregations, is_local ? options.aggregation : variable.aggregation())},
      {"distributed", is_of_distributed_class(strategy)},
      {"wrapped", is_of_wrapper_class(strategy)},
      {"components", components.size()}};
  if (is_of_distributed_class(strategy)) {
    for (const Variable& component : components) {
      // With the name that the case gave, which the library's may extend.
      info["component_names"].push_back(name + component.name().substr(variable.name().size()));
    }
  }
  return Value::of_json(std::move(info));
}

Value components(const Step& step) {
  return Value::of_json(components_as_json(step.test, step.variable()));
}

Value are_components_equal(const Step& step) {
  const Json all = components_as_json(step.test, step.variable());
  return Value::of_json(std::all_of(
      all.begin(), all.end(), [&](const Json& each) { return is_tensor_equal(all[0], each, 0); }));
}

Value component(const Step& step) {
  const auto index = member(step.json, "index").get<std::size_t>();
  return step.test.value_of(step.test.components_of(step.variable()).at(index));
}

Value read(const Step& step) { return Value::of(step.variable().read()); }

Value convert(const Step& step) {
  return Value::of(converted(step.test, step.variable()).detach().clone());
}

// C++ has no raw handles. TensorFlow gives those of components, but none of a whole variable.
Value raw_handle(const Step& step) {
  const Variable variable = step.variable();
  const bool is_whole = step.test.components_of(variable).size() > 1;
  const ReplicaContext* const context = get_replica_context();
  const bool is_in_replica =
      context != nullptr && &context->strategy() == &step.test.strategy_of(variable);
  if (is_whole && !is_in_replica && !step.frame.component()) refuse_type("a raw handle");
  return {};
}

// --- assignment ---------------------------------------------------------------------------------

// `value`: a tensor or a number.
template <class Any, class T>
void assign_dense(const Any& variable, const std::string& method, const T& value) {
  if (method == "assign") return variable.assign(value);
  if (method == "assign_add") return variable.assign_add(value);
  if (method == "assign_sub") return variable.assign_sub(value);
  if (method.starts_with("scatter_")) refuse_type("rows that are a dense value");
  throw CaseFault("unknown method '" + method + "' of a variable");
}

void assign_each(StrategyExtended extended, const Variable& variable, const std::string& method,
                 const PerReplica<at::Tensor>& values) {
  if (method == "assign") return extended.assign(variable, values);
  if (method == "assign_add") return extended.assign_add(variable, values);
  if (method == "assign_sub") return extended.assign_sub(variable, values);
  refuse_type("rows that are distributed");
}

void assign_rows(const Variable& variable, const std::string& method, const at::Tensor& sparse) {
  using Scatter = void (Variable::*)(const at::Tensor&, const at::Tensor&) const;
  static const std::map<std::string, Scatter> methods = {
      {"scatter_add", &Variable::scatter_add},      {"scatter_sub", &Variable::scatter_sub},
      {"scatter_mul", &Variable::scatter_mul},      {"scatter_div", &Variable::scatter_div},
      {"scatter_min", &Variable::scatter_min},      {"scatter_max", &Variable::scatter_max},
      {"scatter_update", &Variable::scatter_update}};
  const auto found = methods.find(method);
  if (found == methods.end()) return assign_dense(variable, method, sparse.to_dense());
  const Rows rows = rows_of(sparse);
  (variable.*found->second)(rows.indices, rows.values);
}

void assign_value(const Step& step, const Variable& variable, const Value& value) {
  const std::string method = step.text_or("method", "assign");
  if (value.is_distributed_leaf()) {
    return assign_each(step.test.strategy_of(variable).extended(), variable, method,
                       per_replica_tensors_of(value));
  }
  if (value.kind != Value::Kind::leaf) refuse_type("an assignment of a list");
  if (value.leaf.kind() == Nest::Kind::integer) {
    return assign_dense(variable, method, value.leaf.integer());
  }
  if (value.leaf.kind() == Nest::Kind::real) {
    return assign_dense(variable, method, value.leaf.real());
  }
  const at::Tensor tensor = tensor_from(step.test, value);
  if (tensor.is_sparse()) return assign_rows(variable, method, tensor);
  assign_dense(variable, method, tensor);
}

// TensorFlow returns the new value, unless read_value is false; in cross-replica context it reads
// all components for it.
Value assign(const Step& step) {
  const Value found = step.frame.find(step.text("var"));
  if (const PerWorkerVariable* const own = found.per_worker_variable()) {
    const at::Tensor value = tensor_from(step.test, step.value("value"));
    assign_dense(*own, step.text_or("method", "assign"), value);
    return {};
  }
  const Variable variable = step.variable();
  assign_value(step, variable, step.value("value"));
  const std::string want = step.text_or("want", "");
  if (want == "self") return Value::of_json(true);
  if (!member_or(step.json, "read_value", true)) return {};
  const bool is_needed = want == "value" || step.has("expect");
  // Another read in a program would cost a round trip.
  if (!is_needed && function::Trace::current() != nullptr) return {};
  if (!is_needed && step.has("as")) return step.test.value_of(variable);
  const bool is_alone = get_replica_context() != nullptr && has_strategy();
  return is_needed || !is_alone ? Value::of(variable.read()) : Value();
}

}  // namespace

const StepTable& variable_steps() {
  static const StepTable table = {
      {"var", {create, {"name", "init", "dtype", "shape", "sync", "agg", "trainable", "global"}}},
      {"var_info", {describe, {"var"}}},
      {"comps", {components, {"var"}}},
      {"comps_equal", {are_components_equal, {"var"}}},
      {"component", {component, {"var", "index"}}},
      {"read", {read, {"var"}}},
      {"value", {convert, {"var"}}},
      {"raw_handle", {raw_handle, {"var"}}},
      {"assign", {assign, {"var", "method", "value", "read_value"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
