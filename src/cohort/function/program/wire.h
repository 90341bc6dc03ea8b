// SPDX-License-Identifier: Apache-2.0
// Bytes of a program, version 2 (docs/formats/function.md), and the checks before other code uses
// it.
#pragma once

#include <span>

#include "cohort/function/prepared_program.h"
#include "cohort/function/program/program.h"

namespace cohort::function {

Bytes encode(const Program& program);
// Accepts any byte string: returns a program or throws data_loss. Every count is checked against
// the bytes left, every value is defined before its use, and no bytes follow the program.
Program decode_program(std::span<const std::byte> bytes);
// Throws data_loss unless ids are in range, every value is defined before its first use (inputs,
// variables and constants once), and each draw has its specs. Does not check operators.
void verify(const Program& program);
// Verifies ops against the allow-list and the schemas of this LibTorch, and makes it runnable.
std::shared_ptr<const PreparedProgram> prepare(Program program, std::string identity);

}  // namespace cohort::function
