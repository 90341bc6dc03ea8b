// SPDX-License-Identifier: Apache-2.0
// A scheduled step that runs in the coordinator's own process (CoordinatorOptions::run_eagerly).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>

#include "cohort/core/export.h"

namespace cohort {

class VariableImpl;

// Bytes of tensors between this process and parameter servers.
struct VariableTraffic {
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
};

// Marks such a step while it lives. Stand-ins of variables on parameter servers then follow their
// servers: after an update the new value is read back, and what the step wrote in place is
// assigned. Used only from the thread that made it.
class COHORT_API EagerStep {
 public:
  // Counts in `traffic`, which outlives it, also where the step fails.
  explicit EagerStep(VariableTraffic& traffic);
  ~EagerStep();
  EagerStep(const EagerStep&) = delete;
  EagerStep& operator=(const EagerStep&) = delete;
  // The step of this thread, or nullptr.
  static EagerStep* current();

  // Records the value that the server and the variable's stand-in have: a tensor that nobody writes
  // to.
  void note(const VariableImpl& variable, at::Tensor value);
  // Whether the stand-in differs in any bit from the value given to note().
  bool has_written(const VariableImpl& variable) const;
  VariableTraffic& traffic() const { return traffic_; }

 private:
  EagerStep* const outer_;
  VariableTraffic& traffic_;
  std::unordered_map<const VariableImpl*, at::Tensor> values_;
};

}  // namespace cohort
