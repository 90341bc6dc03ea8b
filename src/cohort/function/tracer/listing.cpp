// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/listing.h"

#include <sstream>

#include "cohort/function/program/value_text.h"
#include "cohort/function/tracer/compare.h"

namespace cohort::function {
namespace {

using Specs = std::vector<std::optional<TensorSpec>>;

// The specs of an op's results as ": float32[4], ?"; empty where none of them is known.
std::string results_text(const Op& op, const Specs& specs) {
  std::string text;
  bool is_any_known = false;
  for (const Out& out : op.outs) {
    for (const int id : out.ids) {
      const auto index = static_cast<std::size_t>(id);
      const bool is_known = id >= 0 && index < specs.size() && specs[index];
      is_any_known = is_any_known || is_known;
      text += (text.empty() ? "" : ", ") + (is_known ? specs[index]->to_string() : "?");
    }
  }
  return is_any_known ? ": " + text : "";
}

}  // namespace

std::string listing(const Program& program, const Specs& specs) {
  std::ostringstream text;
  for (const ProgramInput& input : program.inputs)
    text << '%' << input.id << " = input: " << input.spec.to_string() << '\n';
  for (std::size_t i = 0; i < program.variables.size(); ++i) {
    const ProgramVariable& variable = program.variables[i];
    text << '%' << variable.id << " = variable #" << i << " '" << variable.name
         << "': " << variable.spec.to_string() << (variable.is_read ? "" : ", not read") << '\n';
  }
  for (const ProgramConstant& constant : program.constants)
    text << '%' << constant.id << " = constant: " << value_text(constant.value) << '\n';
  for (std::size_t i = 0; i < program.ops.size(); ++i) {
    const Op& op = program.ops[i];
    text << '#' << i << ' ' << describe(op) << results_text(op, specs) << '\n';
  }
  text << "return";
  for (std::size_t i = 0; i < program.outputs.size(); ++i) {
    text << (i == 0 ? " " : ", ");
    if (program.outputs[i] < 0) {
      text << "none";
    } else {
      text << '%' << program.outputs[i];
    }
  }
  text << '\n';
  return text.str();
}

}  // namespace cohort::function
