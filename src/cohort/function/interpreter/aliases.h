// SPDX-License-Identifier: Apache-2.0
// Which values of a program may share memory, from the alias annotations of the schemas.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

#include "cohort/function/program/program.h"

namespace cohort::function {

// Classes of values that may share memory, and which op writes a class last. Errs towards larger
// classes: that costs a copy, never a wrong result. Thread-compatible.
class AliasClasses {
 public:
  explicit AliasClasses(int value_count);

  // Notes what `op`, number `position` of the program, does to memory. Positions only grow.
  void add(const Op& op, const c10::OperatorHandle& kernel, int position);
  // The op at `position` writes the memory of `id`.
  void mark_written(int id, int position);

  // Values of one class have one number.
  int class_of(int id) const { return root(id); }
  bool is_written(int id) const { return last_write(id) >= 0; }
  // Some op after `position` writes the memory of `id`.
  bool is_written_after(int id, int position) const { return last_write(id) > position; }

 private:
  int root(int id) const;
  int last_write(int id) const { return last_writes_[static_cast<std::size_t>(root(id))]; }
  void unite(int a, int b);
  void mark_written(const Arg& arg, int position);

  std::vector<int> parents_;  // a root is its own parent
  std::vector<int> sizes_;
  std::vector<int> last_writes_;  // of a root: the position of an op, or -1
};

// The same for a whole program.
AliasClasses aliases_of(const Program& program);

}  // namespace cohort::function
