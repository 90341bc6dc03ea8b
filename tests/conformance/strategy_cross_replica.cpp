// SPDX-License-Identifier: Apache-2.0
// Steps that combine values of several replicas in cross-replica context.
#include "cohort/collective/group.h"
#include "cohort/core/error.h"
#include "cohort/strategy/strategy_extended.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// --- arguments ----------------------------------------------------------------------------------

Axes axes_in(const Step& step) {
  if (!step.has("axis")) return Axes::none();
  const Json& axis = step.json["axis"];
  if (axis.is_number_integer()) return Axes(axis.get<std::int64_t>());
  if (!axis.is_array()) refuse_type("an axis " + axis.dump());
  return Axes(axis.get<std::vector<std::int64_t>>());
}

Destinations destinations_in(const Step& step, const Json& json) {
  if (json.is_string()) return Destinations(device_text(json));
  if (!json.is_object()) refuse_type("destinations " + json.dump());
  const Value value = evaluate(step.test, step.frame, json);
  if (value.variable() != nullptr) return Destinations(*value.variable());
  if (value.is_tensor()) {
    return value.devices.size() == 1 ? Destinations(value.devices[0])
                                     : Destinations(value.leaf.tensor());
  }
  if (!value.is_distributed_leaf()) refuse_type("destinations " + json.dump());
  if (value.items.at(0).variable() != nullptr) return Destinations(*value.items[0].variable());
  return Destinations(per_replica_of(value));
}

// The value that a step combines. In TensorFlow the numbers of replicas become tensors; one that is
// not distributed stays a number.
Value combined_value(const Step& step) {
  return map_leaves(step.value("value"), [&](const Value& leaf) {
    return leaf.is_distributed_leaf() ? with_number_tensors(step.test, leaf) : leaf;
  });
}

// Calls fn with the value in the form that the library takes, or, if its leaves are of several
// kinds, with each leaf.
template <class F>
Value by_form(const Value& value, const F& fn) {
  if (value.variable() != nullptr) return fn(*value.variable());
  if (value.is_tensor()) return fn(value.leaf.tensor());
  if (value.is_distributed_leaf()) {
    bool is_of_tensors = true;
    for (const Value& item : value.items) is_of_tensors = is_of_tensors && item.is_tensor();
    return is_of_tensors ? fn(per_replica_tensors_of(value)) : fn(per_replica_of(value));
  }
  if (!flavours_of(value).is_mixed()) return fn(per_replica_of(value));
  return map_leaves(value, [&](const Value& leaf) { return by_form(leaf, fn); });
}

Value value_of_result(const at::Tensor& tensor) { return Value::of(tensor); }
Value value_of_result(const Nest& nest) { return value_of(nest); }
template <class T>
Value value_of_result(const Mirrored<T>& mirrored) {
  return value_of(mirrored);
}

// --- steps --------------------------------------------------------------------------------------

Value reduce(const Step& step) {
  Strategy& strategy = step.strategy();
  const ReduceOpOrName op = step.op();
  const Axes axes = axes_in(step);
  return by_form(combined_value(step), [&](const auto& value) {
    Value result = value_of_result(strategy.reduce(op, value, axes));
    // TensorFlow returns a variable of which the mean is taken itself.
    result.is_of_variable = std::is_same_v<std::decay_t<decltype(value)>, Variable>;
    return result;
  });
}

Value gather(const Step& step) {
  Strategy& strategy = step.strategy();
  const auto axis = member(step.json, "axis").get<std::int64_t>();
  return by_form(step.value("value"),
                 [&](const auto& value) { return value_of_result(strategy.gather(value, axis)); });
}

Value reduce_to(const Step& step) {
  StrategyExtended extended = step.strategy().extended();
  const ReduceOpOrName op = step.op();
  const Destinations to = destinations_in(step, member(step.json, "to"));
  return by_form(combined_value(step), [&](const auto& value) {
    return value_of_result(extended.reduce_to(op, value, to));
  });
}

Value batch_reduce_to(const Step& step) {
  StrategyExtended extended = step.strategy().extended();
  const ReduceOpOrName op = step.op();
  std::vector<StrategyExtended::ValueAndDestinations> pairs;
  for (const Json& pair : member(step.json, "pairs")) {
    if (!pair.is_array() || pair.size() != 2) refuse_type("a pair " + pair.dump());
    const Value value = evaluate(step.test, step.frame, pair[0]);
    pairs.emplace_back(value.is_distributed_leaf()
                           ? per_replica_tensors_of(value)
                           : PerReplica<at::Tensor>::bare(tensor_from(step.test, value)),
                       destinations_in(step, pair[1]));
  }
  std::vector<Value> results;
  for (const Mirrored<>& result : extended.batch_reduce_to(op, pairs)) {
    results.push_back(value_of(result));
  }
  return Value::of_items(Value::Kind::list, std::move(results));
}

Value broadcast_to(const Step& step) {
  StrategyExtended extended = step.strategy().extended();
  const Destinations to = destinations_in(step, member(step.json, "to"));
  const Value value = with_values(step.test, step.value("value"));
  if (value.is_tensor()) return value_of(extended.broadcast_to(value.leaf.tensor(), to));
  return value_of(extended.broadcast_to(nest_of(value), to));
}

Value local_results(const Step& step) {
  return local_results_of(step.test, step.strategy(), step.value("value"));
}

Value values_from_function(const Step& step) {
  const Json& values = member(step.json, "values");
  const auto value_for = [&](const ValueContext& context) {
    step.test.emit_context("contexts",
                           {context.replica_id_in_sync_group, context.num_replicas_in_sync});
    const auto id = static_cast<std::size_t>(context.replica_id_in_sync_group);
    return nest_of(evaluate(step.test, step.frame, values.at(id % values.size())));
  };
  return wrapped_value(step.strategy().distribute_values_from_function(value_for));
}

}  // namespace

const StepTable& cross_replica_steps() {
  static const StepTable table = {
      {"reduce", {reduce, {"strategy", "op", "value", "axis"}}},
      {"gather", {gather, {"strategy", "value", "axis"}}},
      {"reduce_to", {reduce_to, {"strategy", "op", "value", "to"}}},
      {"batch_reduce_to", {batch_reduce_to, {"strategy", "op", "pairs"}}},
      {"broadcast_to", {broadcast_to, {"strategy", "value", "to"}}},
      {"local_results", {local_results, {"strategy", "value"}}},
      {"from_function", {values_from_function, {"strategy", "values"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
