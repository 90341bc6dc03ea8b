// SPDX-License-Identifier: Apache-2.0
// A step that runs in the coordinator's own process: a scheduled one (CoordinatorOptions::
// run_eagerly), or a call of ParameterServerStrategy::run().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "cohort/core/clock.h"
#include "cohort/core/export.h"
#include "cohort/core/thread_value.h"
#include "cohort/variable/variable.h"

namespace cohort {

// Bytes of tensors between this process and parameter servers.
struct VariableTraffic {
  std::uint64_t pulled_bytes = 0;
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pushes_dropped = 0;  // that a server had applied before
};

// Marks such a step while it lives. Stand-ins of variables on parameter servers then follow their
// servers: after an update the new value is read back, and what the step wrote in place is
// assigned. Used only from the thread that made it.
class COHORT_API EagerStep {
 public:
  enum class Kind : std::uint8_t { scheduled, run };
  // Counts in `traffic`, which outlives it, also where the step fails. `patience`: how long the
  // step may wait for other tasks.
  explicit EagerStep(VariableTraffic& traffic, Kind kind = Kind::scheduled,
                     Duration patience = Duration::zero());
  // The step of this thread, or nullptr.
  static EagerStep* current();
  // Whether this thread runs a scheduled step.
  static bool is_scheduled_here();

  // Records the value that the server and the variable's stand-in have: a tensor that nobody writes
  // to.
  void note(const VariableImpl& variable, at::Tensor value);
  // Whether the stand-in differs in any bit from the value given to note().
  bool has_written(const VariableImpl& variable) const;
  VariableTraffic& traffic() const { return traffic_; }
  Duration patience() const { return patience_; }
  // The rows that the step has looked up in a table.
  std::vector<VariableImpl::LookedUp>& lookups_of(const VariableImpl& table) {
    return lookups_[&table];
  }

 private:
  const internal::ScopedValue<EagerStep*> here_;
  const Kind kind_;
  VariableTraffic& traffic_;
  const Duration patience_;
  std::unordered_map<const VariableImpl*, at::Tensor> values_;
  std::unordered_map<const VariableImpl*, std::vector<VariableImpl::LookedUp>> lookups_;
};

}  // namespace cohort
