// SPDX-License-Identifier: Apache-2.0
// Bytes of a program, version 1 (docs/formats/function.md).
#pragma once

#include <span>

#include "cohort/function/internal/program.h"
#include "cohort/function/prepared_program.h"

namespace cohort::function {

Bytes encode(const Program& program);
// Total: any byte string gives a program or data_loss. Every count is checked against the bytes
// left, every value is defined before its use, nothing trails.
Program decode_program(std::span<const std::byte> bytes);
// Verifies ops against the allow-list and the schemas of this LibTorch, and makes it runnable.
std::shared_ptr<const PreparedProgram> prepare(Program program, std::string identity);

}  // namespace cohort::function
