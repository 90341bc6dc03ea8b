// SPDX-License-Identifier: Apache-2.0
// Makes a program read only those rows of a variable that it uses, as an embedding does, and send
// its gradient as rows.
//
// The kernels stay the same. They get the rows that are used, as a small table, with the numbers of
// the ids in it, so the values and the gradients have the bits that the whole table would give.
#pragma once

#include <optional>
#include <vector>

#include "cohort/core/tensor_spec.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

// `specs`: of the program's values, as far as they are known; extended by those of new values.
//
// The ids are computed before anything is pulled, where they do not depend on a pulled value, so
// that rows and other variables come in one exchange. A variable stays whole if some operator reads
// it otherwise, if the program reads it again after an update, or if its rows are fewer than twice
// the ids.
void gather_rows(Program& program, std::vector<std::optional<TensorSpec>>& specs);

}  // namespace cohort::function
