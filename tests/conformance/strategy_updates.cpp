// SPDX-License-Identifier: Apache-2.0
// Steps that update variables component by component, and that ask where values are.
#include <algorithm>

#include "cohort/strategy/strategy_extended.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// Adds the number of its component to the arguments of each. A variable with one value may belong
// to several replicas, whose strategy takes a plain number.
PerReplica<Nest> numbered(const Value& arguments, std::size_t components) {
  if (components == 1) {
    Value all = arguments;
    all.entries.emplace("number", Value::of(std::int64_t{0}));
    return per_replica_of(all);
  }
  Value number = Value::of_items(Value::Kind::per_replica, {});
  for (std::size_t i = 0; i < components; ++i) {
    number.items.push_back(Value::of(static_cast<std::int64_t>(i)));
  }
  Value all = arguments;
  all.entries.emplace("number", std::move(number));
  return per_replica_of(all);
}

// How many components the arguments of update() need: one for each of the variable or, where it has
// one value, for each that distributed arguments have.
std::size_t components_for(const Value& arguments, std::size_t own) {
  const std::size_t given = num_components(arguments);
  return given == 0 ? own : given;
}

// The results of `function` for all components. tf's group=True makes one value, or only a token
// unless all are tensors; group=False lists them.
Value grouped(const Step& step, const PerReplica<Nest>& results) {
  if (!member_or(step.json, "group", true)) {
    std::vector<Value> each;
    for (const Nest& result : results.local_results()) each.push_back(value_of(result));
    return Value::of_items(Value::Kind::tuple, std::move(each));
  }
  if (!results.is_wrapped()) return value_of(results.value());
  for (const Nest& result : results.local_results()) {
    for (const Nest& leaf : result.flatten()) {
      if (!leaf.is_tensor()) return {};
    }
  }
  return wrapped_value(results);
}

Nest call_for_component(const Step& step, const Nest& own, const Variable* component) {
  Value arguments = value_of(own);
  const auto number = arguments.entries.extract("number").mapped().leaf.integer();
  Frame frame(&step.frame);
  frame.set_component(static_cast<std::size_t>(number));
  if (component != nullptr) frame.bind("self", step.test.value_of(*component));
  return nest_of(call_function(step, frame, arguments));
}

Value update(const Step& step) {
  const Variable variable = step.variable();
  const Value arguments = arguments_of(step);
  const std::size_t components =
      components_for(arguments, step.test.components_of(variable).size());
  return grouped(step, step.strategy().extended().update(
                           variable,
                           [&](const Variable& component, const Nest& own) {
                             return call_for_component(step, own, &component);
                           },
                           numbered(arguments, components)));
}

std::vector<Variable> variables_in(const Step& step) {
  std::vector<Variable> variables;
  for (const Json& name : member_or(step.json, "vars", Json::array())) {
    const Value found = step.frame.find(name);
    if (found.variable() == nullptr) throw CaseFault("no variable " + name.dump());
    variables.push_back(*found.variable());
  }
  return variables;
}

Value update_non_slot(const Step& step) {
  StrategyExtended extended = step.strategy().extended();
  const std::vector<std::string> devices = extended.non_slot_devices(variables_in(step));
  const Value arguments = arguments_of(step);
  return grouped(
      step, extended.update_non_slot(
                devices, [&](const Nest& own) { return call_for_component(step, own, nullptr); },
                numbered(arguments, components_for(arguments, devices.size()))));
}

// "ps:0/CPU:0" for "/job:ps/task:0/CPU:0".
std::string short_device(const std::string& device) {
  constexpr std::string_view kJob = "/job:", kTask = "/task:";
  const std::size_t task = device.find(kTask);
  if (!device.starts_with(kJob) || task == std::string::npos) return device;
  return device.substr(kJob.size(), task - kJob.size()) + ":" + device.substr(task + kTask.size());
}

// One device is written without a list.
Json devices_json(const std::vector<std::string>& devices) {
  Json all = Json::array();
  for (const std::string& device : devices) all.push_back(short_device(device));
  return all.size() == 1 ? all[0] : all;
}

Value non_slot_devices(const Step& step) {
  return Value::of_json(
      devices_json(step.strategy().extended().non_slot_devices(variables_in(step))));
}

Value read_var(const Step& step) {
  return Value::of(step.strategy().extended().read_var(step.variable()));
}

Value value_container(const Step& step) {
  const Value value = step.value("value");
  if (value.variable() == nullptr) return value;
  return step.test.value_of(step.strategy().extended().value_container(*value.variable()));
}

Value device_of(const Step& step) {
  const Value value = step.value("value");
  if (const Variable* const variable = value.variable()) {
    Strategy& strategy = step.test.strategy_of(*variable);
    // The coordinator's own device.
    if (&strategy == &default_strategy() && step.test.has_cluster())
      return Value::of_json("chief:0/CPU:0");
    return Value::of_json(devices_json(strategy.extended().devices(*variable)));
  }
  if (!value.devices.empty()) return Value::of_json(devices_json(value.devices));
  // Tensors of LibTorch do not know on which of several logical CPUs they are.
  if (!value.is_tensor()) throw CaseFault("nothing knows the device of " + step.json.dump());
  return Value::of_json("CPU:0");
}

}  // namespace

const StepTable& update_steps() {
  static const StepTable table = {
      {"update", {update, {"strategy", "var", "args", "kwargs", "body", "return", "group"}}},
      {"update_non_slot",
       {update_non_slot, {"strategy", "vars", "args", "kwargs", "body", "return", "group"}}},
      {"non_slot_devices", {non_slot_devices, {"strategy", "vars"}}},
      {"read_var", {read_var, {"strategy", "var"}}},
      {"value_container", {value_container, {"strategy", "value"}}},
      {"device_of", {device_of, {"value"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
