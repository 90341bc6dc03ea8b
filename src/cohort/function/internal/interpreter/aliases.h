// SPDX-License-Identifier: Apache-2.0
// Which values of a program may share memory, from the alias annotations of the schemas.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

#include "cohort/function/internal/program.h"

namespace cohort::function {

// Classes of values that may share memory, and which classes are written. Errs towards larger
// classes: that costs a copy, never a wrong result. Thread-compatible.
class AliasClasses {
 public:
  explicit AliasClasses(int value_count);

  // Notes what `op` does to memory.
  void add(const Op& op, const c10::OperatorHandle& kernel);

  // Values of one class have one number.
  int class_of(int id) const { return root(id); }
  bool is_written(int id) const { return is_written_[static_cast<std::size_t>(root(id))]; }

 private:
  int root(int id) const;
  void unite(int a, int b);
  void mark_written(const Arg& arg);

  std::vector<int> parents_;  // a root is its own parent
  std::vector<int> sizes_;
  std::vector<bool> is_written_;
};

}  // namespace cohort::function
