// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/core/export.h"

namespace cohort {

// Marks, while it exists, that this thread runs a function that makes a worker's dataset. Such a
// function runs once per worker, so it must not create variables. Thread-compatible.
class COHORT_API DatasetFunctionScope {
 public:
  DatasetFunctionScope();
  ~DatasetFunctionScope();
  DatasetFunctionScope(const DatasetFunctionScope&) = delete;
  DatasetFunctionScope& operator=(const DatasetFunctionScope&) = delete;
  static bool is_on_this_thread();

 private:
  const bool was_on_this_thread_;
};

}  // namespace cohort
