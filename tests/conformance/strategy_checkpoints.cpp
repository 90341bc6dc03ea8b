// SPDX-License-Identifier: Apache-2.0
// Steps that save variables to a file and restore them.
#include "cohort/variable/saved_values.h"
#include "tests/conformance/strategy_steps.h"

namespace cohort::conformance::strategy {
namespace {

// The files that `restore_delayed` steps have opened.
struct OpenFiles {
  std::map<std::string, SavedValues> by_name;
};

std::map<std::string, Variable> variables_by_key(const Step& step) {
  std::map<std::string, Variable> variables;
  for (const auto& [key, name] : member(step.json, "vars").items()) {
    const Value found = step.frame.find(name);
    if (found.variable() == nullptr) throw CaseFault("no variable " + name.dump());
    variables.emplace(key, *found.variable());
  }
  return variables;
}

Value save(const Step& step) {
  save_values(step.test.path_of(step.text("file")), variables_by_key(step));
  return {};
}

Value restore(const Step& step) {
  restore_values(step.test.path_of(step.text("file")), variables_by_key(step));
  return {};
}

Value saved_value(const Step& step) {
  return Value::of(SavedValues(step.test.path_of(step.text("file"))).value(step.text("key")));
}

Value restore_delayed(const Step& step) {
  step.test.kept<OpenFiles>().by_name.insert_or_assign(
      step.text("as_ckpt"), SavedValues(step.test.path_of(step.text("file"))));
  return {};
}

Value attach(const Step& step) {
  const auto& files = step.test.kept<OpenFiles>().by_name;
  const auto file = files.find(step.text("ckpt"));
  if (file == files.end()) throw CaseFault("no open file " + step.json.dump());
  file->second.restore(step.text("key"), step.variable());
  return {};
}

}  // namespace

const StepTable& checkpoint_steps() {
  static const StepTable table = {
      {"save", {save, {"vars", "file"}}},
      {"restore", {restore, {"vars", "file"}}},
      {"ckpt_value", {saved_value, {"file", "key"}}},
      {"restore_delayed", {restore_delayed, {"as_ckpt", "file"}}},
      {"attach", {attach, {"ckpt", "key", "var"}}},
  };
  return table;
}

}  // namespace cohort::conformance::strategy
