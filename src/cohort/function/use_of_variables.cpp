// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/use_of_variables.h"

#include <algorithm>

#include "cohort/function/interpreter/aliases.h"
#include "cohort/function/program/wire.h"

namespace cohort::function {

UseOfVariables use_of_variables(std::span<const std::byte> program) {
  const Program decoded = decode_program(program);
  const AliasClasses memory = aliases_of(decoded);
  std::vector<int> last_reads(static_cast<std::size_t>(decoded.value_count), -1);  // by class
  const auto note = [&](int id, int position) {
    if (id == -1) return;
    int& last = last_reads[static_cast<std::size_t>(memory.class_of(id))];
    last = std::max(last, position);
  };
  UseOfVariables found;
  const auto end = static_cast<int>(decoded.ops.size());
  for (int position = 0; position < end; ++position) {
    const Op& op = decoded.ops[static_cast<std::size_t>(position)];
    for (const Arg& arg : op.args) for_each_value(arg, [&](int id) { note(id, position); });
    if (op.name != "cohort::call") continue;
    const auto number = static_cast<std::size_t>(op.args.at(1).constant.toInt());
    found.calls.resize(std::max(found.calls.size(), number + 1), end);
    found.calls[number] = position;
  }
  for (const int output : decoded.outputs) note(output, end);
  for (const ProgramVariable& variable : decoded.variables) {
    found.are_written_by_operators.push_back(memory.is_written(variable.id));
    found.last_reads.push_back(last_reads[static_cast<std::size_t>(memory.class_of(variable.id))]);
  }
  return found;
}

}  // namespace cohort::function
