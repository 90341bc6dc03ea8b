// SPDX-License-Identifier: Apache-2.0
#include "tests/conformance/strategy_steps.h"

#include <algorithm>
#include <array>

#include "cohort/core/error.h"

namespace cohort::conformance::strategy {
namespace {

// Fields that every step may have (FORMAT.md, 2 and 3).
constexpr std::array<std::string_view, 9> kOutcomeFields = {
    "do", "as", "expect", "error", "emits", "recommended", "quiet", "want", "note"};

const StepKind& kind_of_step(const std::string& name) {
  for (const auto* const table :
       {&context_steps(), &function_steps(), &cross_replica_steps(), &update_steps(),
        &replica_steps(), &variable_steps(), &checkpoint_steps(), &resolver_steps(), &queue_steps(),
        &training_steps(), &partitioner_steps(), &sharded_steps(), &server_steps(),
        &coordinator_steps(), &fault_steps(), &v1_steps()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second;
  }
  throw CaseFault("unknown step '" + name + "'");
}

void check_fields(const StepKind& kind, const Json& step) {
  for (const auto& [field, value] : step.items()) {
    const auto is_it = [&name = field](std::string_view known) { return known == name; };
    if (!std::any_of(kOutcomeFields.begin(), kOutcomeFields.end(), is_it) &&
        !std::any_of(kind.fields.begin(), kind.fields.end(), is_it)) {
      throw CaseFault("unknown field '" + field + "' of step " + brief(step, 120));
    }
  }
}

std::string camel_case(std::string_view code) {
  std::string name;
  bool is_start = true;
  for (const char letter : code) {
    if (letter != '_') name.push_back(is_start ? static_cast<char>(letter - 'a' + 'A') : letter);
    is_start = letter == '_';
  }
  return name;
}

Json error_json(bool is_of_user, std::string_view code, std::string_view message) {
  return {{"error", {{"user", is_of_user}, {"code", camel_case(code)}, {"message", message}}}};
}

}  // namespace

Variable Step::variable(const char* key) const {
  const std::string name = text(key);
  const Value found = frame.find(name);
  if (found.variable() == nullptr) throw CaseFault("'" + name + "' is no variable");
  return *found.variable();
}

ReduceOpOrName Step::op() const {
  const std::string name = text("op");
  constexpr std::string_view kEnum = "enum:";
  if (!name.starts_with(kEnum)) return ReduceOpOrName(name);
  const std::string value = name.substr(kEnum.size());
  if (value == "SUM") return ReduceOp::sum;
  if (value == "MEAN") return ReduceOp::mean;
  refuse_type("a ReduceOp '" + value + "'");
}

Value do_step(StrategyCase& test, Frame& frame, const Json& step) {
  const StepKind& kind = kind_of_step(member(step, "do").get<std::string>());
  check_fields(kind, step);
  const Value result = kind.function({test, frame, step});
  if (kind.binds_result && step.contains("as")) frame.bind(step["as"], result);
  return result;
}

void do_steps(StrategyCase& test, Frame& frame, const Json& steps) {
  for (const Json& step : steps) do_step(test, frame, step);
}

Value arguments_of(const Step& step) {
  std::vector<Value> args;
  for (const Json& argument : member_or(step.json, "args", Json::array())) {
    args.push_back(evaluate(step.test, step.frame, argument));
  }
  Value kwargs;
  kwargs.kind = Value::Kind::map;
  const Json named = member_or(step.json, "kwargs", Json::object());
  for (const auto& [name, argument] : named.items()) {
    kwargs.entries.emplace(name, evaluate(step.test, step.frame, argument));
  }
  Value all;
  all.kind = Value::Kind::map;
  all.entries.emplace("args", Value::of_items(Value::Kind::tuple, std::move(args)));
  all.entries.emplace("kwargs", std::move(kwargs));
  return all;
}

Value call_function(const Step& step, Frame& frame, const Value& arguments) {
  const std::vector<Value>& args = arguments.entries.at("args").items;
  for (std::size_t i = 0; i < args.size(); ++i) frame.bind("a" + std::to_string(i), args[i]);
  for (const auto& [name, value] : arguments.entries.at("kwargs").entries) frame.bind(name, value);
  do_steps(step.test, frame, member_or(step.json, "body", Json::array()));
  return step.json.contains("return") ? evaluate(step.test, frame, step.json["return"]) : Value();
}

Json caught_error_json() {
  try {
    throw;
  } catch (const CaseFault&) {
    throw;
  } catch (const UserError& error) {
    return error_json(true, name_of(ErrorCode::unknown), error.what());
  } catch (const nlohmann::json::exception& error) {
    throw CaseFault(std::string("a field of the case is not as expected: ") + error.what());
  } catch (...) {
    const Error error = current_error();
    return error_json(false, name_of(error.code()), error.what());
  }
}

}  // namespace cohort::conformance::strategy
