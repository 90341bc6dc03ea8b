// SPDX-License-Identifier: Apache-2.0
// The values that a thread has read inside a CacheVariableReadsScope.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "cohort/core/export.h"
#include "cohort/variable/variable.h"

namespace cohort::function {
class Trace;
}

namespace cohort::variable {

// Used only from the thread that made it.
class COHORT_API ReadCache {
 public:
  // Throws invalid_argument if this thread has one.
  ReadCache();
  ~ReadCache();
  ReadCache(const ReadCache&) = delete;
  ReadCache& operator=(const ReadCache&) = delete;

  // The one of this thread, if it was made in the same trace, or outside of one as this call: a
  // value from elsewhere would become a constant of the traced program. nullptr for variables
  // whose home does not let reads be cached.
  static ReadCache* for_reads_of(const Variable& variable);

  // Undefined if the variable was not read.
  at::Tensor find(const Variable& variable) const;
  void keep(const Variable& variable, at::Tensor value);

 private:
  struct Kept {
    Variable variable;  // keeps the address from being used again
    at::Tensor value;
  };
  const function::Trace* trace_;
  std::unordered_map<const VariableImpl*, Kept> kept_;
};

}  // namespace cohort::variable
