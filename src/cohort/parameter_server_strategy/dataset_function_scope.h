// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cohort/core/export.h"
#include "cohort/core/thread_value.h"

namespace cohort {

// Marks, while it exists, that this thread runs a function that makes a worker's dataset. Such a
// function runs once per worker, so it must not create variables. Thread-compatible.
class COHORT_API DatasetFunctionScope {
 public:
  DatasetFunctionScope();
  static bool is_on_this_thread();

 private:
  const internal::ScopedValue<bool> is_inside_;
};

}  // namespace cohort
