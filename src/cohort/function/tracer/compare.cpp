// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/tracer/compare.h"

#include <algorithm>
#include <cstring>
#include <iomanip>
#include <sstream>

#include "cohort/function/program/value_text.h"

namespace cohort::function {
namespace {

using Specs = std::vector<std::optional<TensorSpec>>;

// "%7"
std::string name_of_value(int id) { return id < 0 ? "none" : "%" + std::to_string(id); }

void write_ids(std::ostream& out, const std::vector<int>& ids) {
  out << '[';
  for (std::size_t i = 0; i < ids.size(); ++i) out << (i > 0 ? ", " : "") << name_of_value(ids[i]);
  out << ']';
}

void write_argument(std::ostream& out, const Arg& arg) {
  switch (arg.kind) {
    case Arg::Kind::none:
      out << "none";
      return;
    case Arg::Kind::value:
      out << name_of_value(arg.id);
      return;
    case Arg::Kind::values:
      write_ids(out, arg.ids);
      return;
    case Arg::Kind::boolean_false:
      out << "false";
      return;
    case Arg::Kind::boolean_true:
      out << "true";
      return;
    case Arg::Kind::real:
      out << std::setprecision(17) << arg.constant.toDouble();
      return;
    case Arg::Kind::text:
      out << '"' << arg.constant.toStringRef() << '"';
      return;
    default:
      out << std::setprecision(17) << arg.constant;
      return;
  }
}

bool is_equal(const Arg& first, const Arg& second) {
  if (first.kind != second.kind || first.id != second.id || first.ids != second.ids) return false;
  const c10::IValue &a = first.constant, &b = second.constant;
  if (a.isNone()) return true;  // the kind and the numbers of values say all
  if (a.isInt()) return a.toInt() == b.toInt();
  if (a.isIntList()) return a.toIntVector() == b.toIntVector();
  // The text has 17 digits, enough to tell apart any two doubles; NaN equals NaN, -0 does not equal
  // 0.
  std::ostringstream texts[2];
  write_argument(texts[0], first);
  write_argument(texts[1], second);
  return texts[0].str() == texts[1].str();
}

bool is_equal(const Op& first, const Op& second) {
  auto same_args = [](const Arg& a, const Arg& b) { return is_equal(a, b); };
  return first.name == second.name && first.overload == second.overload &&
         first.flags == second.flags && first.outs == second.outs &&
         std::equal(first.args.begin(), first.args.end(), second.args.begin(), second.args.end(),
                    same_args);
}

bool is_equal(const ProgramConstant& first, const ProgramConstant& second) {
  if (first.id != second.id || first.is_wrapped_number != second.is_wrapped_number) return false;
  if (TensorSpec::of(first.value) != TensorSpec::of(second.value)) return false;
  const std::size_t bytes = first.value.nbytes();  // 0: there is no memory
  return bytes == 0 || std::memcmp(first.value.data_ptr(), second.value.data_ptr(), bytes) == 0;
}

// The first values with all digits, so that a small change is visible.
std::string describe(const ProgramConstant& constant) {
  return value_text(constant.value, {.values_max = 4, .digits = 17});
}

bool uses(const Op& op, int id) {
  return std::any_of(op.args.begin(), op.args.end(), [id](const Arg& arg) {
    return arg.id == id || std::find(arg.ids.begin(), arg.ids.end(), id) != arg.ids.end();
  });
}

std::string difference(const Program& program, const ProgramConstant& first,
                       const ProgramConstant& second) {
  std::ostringstream text;
  auto user = std::find_if(program.ops.begin(), program.ops.end(),
                           [&](const Op& op) { return uses(op, first.id); });
  if (user == program.ops.end()) {
    text << "a returned value";
  } else {
    text << "op #" << user - program.ops.begin() << " " << describe(*user);
  }
  text << " reads constant %" << first.id << " = " << describe(first) << " in the first pass and "
       << describe(second) << " in the second";
  return text.str();
}

std::string form(const Program& program, std::size_t index) {
  return index < program.ops.size() ? describe(program.ops[index]) : "the end of the function";
}

// The difference in op `index`.
std::string difference(const Program& first, const Program& second, std::size_t index) {
  std::ostringstream text;
  text << "op #" << index << " was " << form(first, index) << " in the first pass and "
       << form(second, index) << " in the second";
  return text.str();
}

std::string constant_difference(const Program& first, const Program& second) {
  std::size_t constants = std::min(first.constants.size(), second.constants.size());
  for (std::size_t i = 0; i < constants; ++i) {
    if (!is_equal(first.constants[i], second.constants[i])) {
      return difference(first, first.constants[i], second.constants[i]);
    }
  }
  return "";
}

// The effects as text without values, for example `cohort::apply "adam" "adam_1" of
// variable 'w'`.
std::vector<std::string> effects_of(const Program& program) {
  std::vector<std::string> effects;
  for (const Op& op : program.ops) {
    if ((op.flags & Op::effect) == 0) continue;
    std::ostringstream text;
    text << op.name;
    for (const Arg& arg : op.args) {
      if (arg.kind == Arg::Kind::text) text << " \"" << arg.constant.toStringRef() << '"';
      if (arg.kind != Arg::Kind::integer || op.name == "cohort::iterator_next") continue;
      const auto variable = static_cast<std::size_t>(arg.constant.toInt());
      if (variable < program.variables.size())
        text << " of variable '" << program.variables[variable].name << "'";
    }
    effects.push_back(text.str());
  }
  return effects;
}

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

std::string describe(const Op& op) {
  std::ostringstream text;
  for (std::size_t i = 0; i < op.outs.size(); ++i) {
    text << (i > 0 ? ", " : "");
    if (op.outs[i].is_list || op.outs[i].ids.size() != 1) {
      write_ids(text, op.outs[i].ids);
    } else {
      text << name_of_value(op.outs[i].ids.front());
    }
  }
  text << (op.outs.empty() ? "" : " = ") << op.name << (op.overload.empty() ? "" : ".")
       << op.overload << '(';
  for (std::size_t i = 0; i < op.args.size(); ++i) {
    if (i > 0) text << ", ";
    write_argument(text, op.args[i]);
  }
  text << ')';
  return text.str();
}

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
  for (std::size_t i = 0; i < program.outputs.size(); ++i)
    text << (i == 0 ? " " : ", ") << name_of_value(program.outputs[i]);
  text << '\n';
  return text.str();
}

std::string first_difference(const Program& first, const Program& second) {
  std::size_t ops = std::max(first.ops.size(), second.ops.size());
  for (std::size_t i = 0; i < ops; ++i) {
    bool both = i < first.ops.size() && i < second.ops.size();
    if (!both || !is_equal(first.ops[i], second.ops[i])) return difference(first, second, i);
  }
  if (std::string text = constant_difference(first, second); !text.empty()) return text;
  bool same_tables = first.constants.size() == second.constants.size() &&
                     first.variables.size() == second.variables.size() &&
                     first.inputs.size() == second.inputs.size();
  for (std::size_t i = 0; same_tables && i < first.variables.size(); ++i) {
    same_tables = first.variables[i].name == second.variables[i].name;
  }
  for (std::size_t i = 0; i < first.draws.size(); ++i) {
    if (first.draws[i].fields != second.draws[i].fields)
      return "the two passes drew elements of other shapes";
  }
  if (!same_tables) return "the two passes used other variables, constants or captured inputs";
  return first.outputs == second.outputs ? "" : "the two passes returned other values";
}

std::string first_difference_of_effects(const Program& first, const Program& second) {
  const std::vector<std::string> a = effects_of(first), b = effects_of(second);
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string &before = i < a.size() ? a[i] : "", &after = i < b.size() ? b[i] : "";
    if (before == after) continue;
    const auto name = [](const std::string& effect) { return effect.empty() ? "none" : effect; };
    return "its effect " + std::to_string(i) + " is " + name(before) + " in the first call, and " +
           name(after) + " in the next";
  }
  return "";
}

std::string first_difference_so_far(const Program& first, const Program& beginning) {
  for (std::size_t i = 0; i < beginning.ops.size(); ++i) {
    if (i >= first.ops.size()) return difference(first, beginning, i);
    Op op = beginning.ops[i];
    if (op.outs.empty() && i + 1 == beginning.ops.size()) {
      op.outs = first.ops[i].outs;
      op.flags = first.ops[i].flags;
    }
    if (!is_equal(first.ops[i], op)) return difference(first, beginning, i);
  }
  return constant_difference(first, beginning);
}

std::string first_difference_so_far(const std::vector<Op>& first,
                                    const std::vector<Op>& beginning) {
  for (std::size_t i = 0; i < beginning.size(); ++i) {
    if (i < first.size() && is_equal(first[i], beginning[i])) continue;
    return "the second pass called " + describe(beginning[i]) +
           (i < first.size() ? ", the first pass " + describe(first[i]) : "");
  }
  return "";
}

}  // namespace cohort::function
