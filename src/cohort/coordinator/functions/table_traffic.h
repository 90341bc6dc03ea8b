// SPDX-License-Identifier: Apache-2.0
// A warning of steps that move large tables to use a few of their rows.
#pragma once

#include <string>

#include "cohort/core/bytes.h"
#include "cohort/function/prepared_program.h"
#include "cohort/variable/variable_table.h"

namespace cohort::coordinator {

// Warns if a call of the step pulls and pushes more than 16 MiB for variables of which it only
// looks up rows, but which it moves whole. Returns whether it has warned.
bool warn_of_moved_tables(const std::string& step, const Bytes& program,
                          const function::ProgramInfo& info, const VariableTable& variables);

}  // namespace cohort::coordinator
