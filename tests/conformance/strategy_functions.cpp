// SPDX-License-Identifier: Apache-2.0
// Steps that call functions: run, merge_call, and what bodies may do.
#include <unistd.h>

#include <concepts>

#include "cohort/core/error.h"
#include "tests/conformance/strategy_outcome.h"
#include "tests/conformance/strategy_steps.h"
#include "tests/conformance/strategy_worker_process.h"

namespace cohort::conformance::strategy {

Value compiled_result(StrategyCase& test, const Value& value) {
  return map_leaves(value, [&](const Value& leaf) {
    const bool is_constant = leaf.kind == Value::Kind::leaf && !leaf.is_null() &&
                             !leaf.is_tensor() && leaf.variable() == nullptr;
    return is_constant ? Value::of(tensor_from(test, leaf)) : leaf;
  });
}

namespace {

// --- run ----------------------------------------------------------------------------------------

// `raw_args` replaces the arguments and must be a list or a tuple; C++ takes arguments one by one.
Value arguments_of_run(const Step& step) {
  Value arguments = arguments_of(step);
  if (!step.json.contains("raw_args")) return arguments;
  const Value raw = step.value("raw_args");
  if (raw.kind != Value::Kind::list && raw.kind != Value::Kind::tuple) {
    refuse_type("arguments of run() that are no arguments");
  }
  arguments.entries.at("args").items = raw.items;
  return arguments;
}

Value run(const Step& step) {
  const Value arguments = arguments_of_run(step);
  const auto function = [&](const Nest& own) {
    Frame frame(&step.frame);
    frame.forget_component();
    return nest_of(call_function(step, frame, value_of(own)));
  };
  Value result;
  for (int i = 0; i < member_or(step.json, "times", 1); ++i) {
    Strategy& strategy = step.strategy();
    const PerReplica<Nest> all = per_replica_of(arguments);
    result = regrouped_value(step.json["do"] == "run"
                                 ? strategy.run(function, all)
                                 : strategy.extended().call_for_each_replica(function, all),
                             "run");
  }
  return member_or(step.json, "compiled", false) ? compiled_result(step.test, result) : result;
}

// --- merge_call ---------------------------------------------------------------------------------

constexpr std::size_t kMostMergedArguments = 8;

template <class Merge>
Nest merged(const ReplicaContext& context, const std::vector<Nest>& own, const Merge& merge_fn) {
  Nest result;
  const auto call = [&]<std::size_t... I>(std::index_sequence<I...>) {
    result = context.merge_call(merge_fn, own[I]...);
  };
  const auto dispatch = [&]<std::size_t... Count>(std::index_sequence<Count...>) {
    return ((own.size() == Count && (call(std::make_index_sequence<Count>{}), true)) || ...);
  };
  if (!dispatch(std::make_index_sequence<kMostMergedArguments + 1>{})) {
    throw CaseFault("a merge_call with too many arguments");
  }
  return result;
}

Value merge(const Step& step) {
  const Value arguments = arguments_of(step);
  std::vector<Nest> own;
  for (const Value& argument : arguments.entries.at("args").items) own.push_back(nest_of(argument));
  std::vector<std::string> names;
  for (const auto& [name, value] : arguments.entries.at("kwargs").entries) {
    names.push_back(name);
    own.push_back(nest_of(value));
  }
  // Takes as many arguments as there are.
  const auto merge_fn = [&](Strategy&, const std::same_as<PerReplica<Nest>> auto&... each) {
    Value all = arguments;
    std::vector<Value> values = {regrouped_value(each, "merge_call")...};
    const std::size_t count = all.entries.at("args").items.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      (i < count ? all.entries.at("args").items[i]
                 : all.entries.at("kwargs").entries.at(names[i - count])) = values[i];
    }
    Frame frame(&step.frame);
    frame.forget_component();
    return per_replica_of(call_function(step, frame, all));
  };
  return value_of(merged(current_replica(), own, merge_fn));
}

// --- bodies -------------------------------------------------------------------------------------

Value call(const Step& step) {
  Value result;
  for (int i = 0; i < member_or(step.json, "times", 1); ++i) {
    Frame frame(&step.frame);
    result = call_function(step, frame, arguments_of(step));
  }
  return result;
}

// The steps of a body without names of its own.
void do_body(const Step& step) {
  do_steps(step.test, step.frame, member_or(step.json, "body", Json::array()));
}

Value repeat(const Step& step) {
  for (int i = 0; i < member_or(step.json, "times", 1); ++i) do_body(step);
  return {};
}

bool has_number(const Step& step, std::int64_t number) {
  for (const Json& id : member(step.json, "ids")) {
    if (id == number) return true;
  }
  return false;
}

Value on_some_replicas(const Step& step) {
  if (has_number(step, current_replica().replica_id_in_sync_group())) do_body(step);
  return {};
}

Value on_some_workers(const Step& step) {
  if (has_number(step, static_cast<std::int64_t>(step.test.worker()))) do_body(step);
  return {};
}

Value attempt(const Step& step) {
  Json outcome = "ok";
  try {
    do_body(step);
  } catch (...) {
    outcome = caught_error_json();
  }
  step.test.emit(step.text("label"), step.frame, std::move(outcome));
  return {};
}

Value emit(const Step& step) {
  step.test.emit(step.text("label"), step.frame,
                 json_of_value(step.test, step.frame, step.value("value")));
  return {};
}

Value raise(const Step& step) {
  const std::string kind = step.text("kind");
  const std::string message = step.text_or("msg", "");
  if (kind == "UserError") throw UserError(message);
  throw Error(code_of_kind(kind), message);
}

Value die(const Step&) { ::_exit(kExitCodeOfDie); }

Value eval(const Step& step) { return step.value("value"); }

}  // namespace

const StepTable& function_steps() {
  static const std::vector<std::string_view> run_fields = {
      "strategy", "args", "kwargs", "body", "return", "compiled", "times", "raw_args"};
  static const StepTable table = {
      {"run", {run, run_fields}},
      {"call_for_each", {run, run_fields}},
      {"merge_call", {merge, {"args", "kwargs", "body", "return"}}},
      {"call", {call, {"args", "kwargs", "body", "return", "compiled", "times"}}},
      {"while", {repeat, {"times", "body"}}},
      {"if_replica", {on_some_replicas, {"ids", "body"}}},
      {"only_worker", {on_some_workers, {"ids", "body"}}},
      {"try", {attempt, {"label", "body"}}},
      {"emit", {emit, {"label", "value"}}},
      {"raise", {raise, {"kind", "msg"}}},
      {"die", {die, {}}},
      {"eval", {eval, {"value"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
