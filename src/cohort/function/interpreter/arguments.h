// SPDX-License-Identifier: Apache-2.0
// Converts an argument of a program to the stack value that a kernel of this LibTorch expects.
#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <vector>

#include "cohort/function/program/program.h"

namespace cohort::function {

// Where an argument comes from when its op runs. A value type.
struct Source {
  enum class Kind : std::uint8_t { constant, value, list, optional_list, generator };
  Kind kind = Kind::constant;
  bool is_moved = false;      // the register's last use
  int id = -1;                // value
  std::vector<int> ids = {};  // list, optional_list
  c10::IValue constant = {};
};

// nullopt: the schema's argument does not accept `arg`. A wrong value that reached a kernel would
// fail an internal assertion there, or worse.
std::optional<Source> source_of(const Arg& arg, const c10::Argument& expected);
// For an argument that the program leaves out; nullopt: there is no default.
std::optional<Source> default_source(const c10::Argument& expected);

}  // namespace cohort::function
