// SPDX-License-Identifier: Apache-2.0
#include "cohort/function/written_variables.h"

#include "cohort/function/interpreter/aliases.h"
#include "cohort/function/program/wire.h"

namespace cohort::function {

std::vector<bool> written_by_operators(std::span<const std::byte> program) {
  const Program decoded = decode_program(program);
  const AliasClasses memory = aliases_of(decoded);
  std::vector<bool> are_written;
  for (const ProgramVariable& variable : decoded.variables)
    are_written.push_back(memory.is_written(variable.id));
  return are_written;
}

}  // namespace cohort::function
